"use strict";
/* The page of a run: one zoom for all charts, and the decision that is looked at. */
window.dash_clientside = window.dash_clientside || {};

(function () {
  let zoomed = null; // what all charts show, as the axis has it; null is all of it

  const plots = () => document.querySelectorAll(".run-charts .js-plotly-plot");

  function asked(relayout) {
    if (!relayout) return undefined;
    if (relayout["xaxis.autorange"] || relayout.autosize === false) return null;
    const low = relayout["xaxis.range[0]"];
    const high = relayout["xaxis.range[1]"];
    if (low !== undefined && high !== undefined) return [low, high];
    return relayout["xaxis.range"];
  }

  const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

  function show(range) {
    const change = range ? { "xaxis.range": range.slice() } : { "xaxis.autorange": true };
    for (const plot of plots()) {
      const axis = plot.layout.xaxis;
      if (range ? same(axis.range, range) && !axis.autorange : axis.autorange) continue;
      Plotly.relayout(plot, change);
    }
  }

  window.dash_clientside.run = {
    zoom() {
      const nothing = window.dash_clientside.no_update;
      const triggered = window.dash_clientside.callback_context.triggered[0];
      if (!triggered) return [nothing, nothing];
      const whole = triggered.prop_id === "run-whole.n_clicks";
      const range = whole ? null : asked(triggered.value);
      if (range === undefined || (!whole && same(range, zoomed))) return [nothing, nothing];
      zoomed = range;
      show(range);
      return [range, range === null];
    },

    // Another axis has other places: the page is drawn anew, without the zoom.
    axis(value) {
      const query = new URLSearchParams(window.location.search);
      if ((query.get("axis") || "clock") === value) return window.dash_clientside.no_update;
      query.set("axis", value);
      query.delete("zoom");
      zoomed = null;
      window.history.replaceState({}, "", `${window.location.pathname}?${query}`);
      window.dispatchEvent(new CustomEvent("_dashprivate_pushstate"));
      return window.dash_clientside.no_update;
    },

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
})();
