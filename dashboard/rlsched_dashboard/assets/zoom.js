"use strict";
/* One zoom for all charts of a page, and the axis they share. */
window.dash_clientside = window.dash_clientside || {};

(function () {
  let zoomed = null; // what all charts show, as the axis has it; null is all of it
  let whole = null; // from where to where that is

  const plots = () => document.querySelectorAll(".linked .js-plotly-plot");

  // What people drag has its ends one by one; a whole ``xaxis.range`` is what ``show`` gave, and
  // may come after the next one: no wish of anybody.
  function wish(relayout) {
    if (!relayout) return undefined;
    if (relayout["xaxis.autorange"]) return null;
    const low = relayout["xaxis.range[0]"];
    const high = relayout["xaxis.range[1]"];
    return low !== undefined && high !== undefined ? [low, high] : undefined;
  }

  const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

  function show(range) {
    for (const plot of plots()) {
      const axis = plot.layout.xaxis;
      if (axis.autorange || !same(axis.range, range)) {
        Plotly.relayout(plot, { "xaxis.range": range.slice() });
      }
    }
  }

  window.dash_clientside.zoom = {
    asked() {
      const nothing = window.dash_clientside.no_update;
      // A busy browser tells of several charts at once; most of them only say that they were drawn.
      const triggered = window.dash_clientside.callback_context.triggered;
      const all = triggered.some((each) => each.prop_id.endsWith("-whole.n_clicks"));
      const wishes = triggered.map((each) => wish(each.value));
      let range = all ? null : wishes.find((each) => each !== undefined);
      if (range === undefined) return [nothing, nothing];
      if (same(range, whole)) range = null;
      if (!all && range && same(range, zoomed)) return [nothing, nothing];
      const changed = !same(range, zoomed);
      zoomed = range;
      show(range || whole);
      return changed ? [range, range === null] : [nothing, nothing];
    },

    // The run goes on: who sees all of it goes with it.
    whole(range, zoom) {
      whole = range;
      zoomed = zoom || null;
      if (!zoomed) show(whole);
      return window.dash_clientside.no_update;
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
  };
})();
