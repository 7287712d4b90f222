"use strict";
/* The page Compare: what is chosen there stands in the address, and draws the page anew. */
window.dash_clientside = window.dash_clientside || {};

window.dash_clientside.compare = {
  // ``shown`` is what the page was drawn with: no wish of anybody.
  ask(runs, baseline, metrics, axis, shown) {
    const nothing = window.dash_clientside.no_update;
    const by = window.dash_clientside.callback_context.triggered[0];
    if (!by) return nothing;
    const name = by.prop_id.replace("compare-", "").replace(".value", "");
    const value = { runs: (runs || []).join(","), baseline, metrics: (metrics || []).join(","), axis };
    const query = new URLSearchParams(window.location.search);
    if (value[name] === null || shown[name] === value[name]) return nothing;
    query.set(name, value[name]);
    query.delete("zoom");
    if (name === "runs") query.delete("metrics");
    rlsched.go(`${window.location.pathname}?${query}`);
    return nothing;
  },

  csv(clicks) {
    if (!clicks) return [window.dash_clientside.no_update, window.dash_clientside.no_update];
    return [{ fileName: "comparison.csv" }, true];
  },
};
