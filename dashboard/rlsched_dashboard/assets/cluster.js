"use strict";
/* The page Cluster: which simulated workload is looked at. */
window.dash_clientside = window.dash_clientside || {};

window.dash_clientside.cluster = {
  simulation(name, names) {
    const query = new URLSearchParams(window.location.search);
    if (!name || name === (query.get("simulation") || names[0])) {
      return window.dash_clientside.no_update;
    }
    query.set("simulation", name);
    rlsched.go(`${window.location.pathname}?${query}`);
    return window.dash_clientside.no_update;
  },
};
