"use strict";
/* What is asked of runs, before the question whether it is meant. */
window.dash_clientside = window.dash_clientside || {};

window.dash_clientside.actions = {
  ask(kind, clicks, rows) {
    if (!clicks || !rows || !rows.length) return window.dash_clientside.no_update;
    return { kind, clicks, runs: rows.map(({ run_id, name }) => ({ run_id, name })) };
  },
};
