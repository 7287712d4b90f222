"use strict";
/* The page Cluster: which simulated workload is looked at. */
window.dash_clientside = window.dash_clientside || {};

window.dash_clientside.cluster = {
  simulation(name) {
    const query = new URLSearchParams(window.location.search);
    const triggered = window.dash_clientside.callback_context.triggered[0];
    if (!triggered || !name || query.get("simulation") === name) {
      return window.dash_clientside.no_update;
    }
    query.set("simulation", name);
    rlsched.go(`${window.location.pathname}?${query}`);
    return window.dash_clientside.no_update;
  },
};
