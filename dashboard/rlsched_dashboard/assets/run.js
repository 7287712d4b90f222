"use strict";
/* The page of a run: the decision that is looked at. */
window.dash_clientside = window.dash_clientside || {};

window.dash_clientside.run = {
  decision(clicks, rows, opened) {
    const by = window.dash_clientside.callback_context.triggered[0];
    const nothing = window.dash_clientside.no_update;
    if (!by) return nothing;
    if (by.prop_id === "run-drawer.opened") return opened === false ? null : nothing;
    if (by.prop_id === "run-decisions.selectedRows") {
      return rows && rows.length ? rows[0].number : nothing;
    }
    const point = by.value && by.value.points && by.value.points[0];
    return point && point.data.name === "decision" ? point.customdata : nothing;
  },
};
