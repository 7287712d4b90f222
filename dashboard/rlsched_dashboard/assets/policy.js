"use strict";
/* The page Policy: which version and which runs of learning are looked at. */
window.dash_clientside = window.dash_clientside || {};

window.dash_clientside.policy = {
  value(value) {
    return window.dashAgGridFunctions.rlsched.number(value);
  },

  choose(rows) {
    const nothing = window.dash_clientside.no_update;
    if (!rows || !rows.length) return nothing;
    const query = new URLSearchParams(window.location.search);
    if (query.get("version") === rows[0].name) return nothing;
    query.set("version", rows[0].name);
    rlsched.go(`${window.location.pathname}?${query}`);
    return nothing;
  },

  learning(runs, usual) {
    const query = new URLSearchParams(window.location.search);
    const same = JSON.stringify(runs) === JSON.stringify(usual);
    if (same && !query.has("learning")) return window.dash_clientside.no_update;
    query.set("learning", (runs || []).join(","));
    const address = `${window.location.pathname}?${query}`;
    window.history.replaceState(window.history.state, "", address);
    return window.dash_clientside.no_update;
  },
};
