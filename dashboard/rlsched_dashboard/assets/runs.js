"use strict";
/* The page Runs: sorting, comparing, saved views. */
window.dash_clientside = window.dash_clientside || {};

window.dash_clientside.runs = {
  sort(columns) {
    const sorted = (columns || []).filter((column) => column.sort);
    if (!sorted.length) return window.dash_clientside.no_update;
    return JSON.stringify(sorted.map(({ colId, sort }) => ({ colId, sort })));
  },

  comparable(rows) {
    const count = (rows || []).length;
    const label = count > 10 ? "Compare (10 at most)" : count ? `Compare ${count}` : "Compare";
    return [count < 2 || count > 10, label];
  },

  compare(clicks, rows, address) {
    if (clicks && rows) rlsched.go(`${address}?runs=${rows.map((row) => row.run_id).join(",")}`);
    return window.dash_clientside.no_update;
  },

  csv(clicks) {
    if (!clicks) return [window.dash_clientside.no_update, window.dash_clientside.no_update];
    return [{ fileName: "runs.csv" }, true];
  },

  // What each name stands for is the address's part after "?".
  views(kept, keep, forget, name, chosen) {
    const views = Object.assign({}, kept);
    const by = window.dash_clientside.callback_context.triggered_id;
    if (by === "runs-keep" && name) views[name] = window.location.search;
    if (by === "runs-forget" && chosen) delete views[chosen];
    const names = Object.keys(views).sort();
    const same = by !== "runs-keep" && by !== "runs-forget";
    return [names, same ? window.dash_clientside.no_update : views];
  },

  show(name, kept) {
    if (name && kept && kept[name] !== undefined) {
      rlsched.go(window.location.pathname + kept[name]);
    }
    return window.dash_clientside.no_update;
  },
};
