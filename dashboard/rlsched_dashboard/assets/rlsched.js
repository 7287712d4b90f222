"use strict";
/* The theme before the first paint, and the downloads of charts. */
window.rlsched = window.rlsched || {};

(function () {
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  rlsched.paint = function (choice) {
    const scheme = choice === "auto" || !choice ? (dark.matches ? "dark" : "light") : choice;
    root.setAttribute("data-mantine-color-scheme", scheme);
  };

  // The grids take their colours from the body, everything else from the root.
  function follow() {
    document.body.dataset.agThemeMode = root.getAttribute("data-mantine-color-scheme") || "light";
  }
  const chosen = () => window.localStorage.getItem("mantine-color-scheme-value");
  rlsched.paint(chosen());
  follow();
  new MutationObserver(follow).observe(root, {
    attributes: true,
    attributeFilter: ["data-mantine-color-scheme"],
  });
  dark.addEventListener("change", () => rlsched.paint(chosen()));

  // Links of Dash's components tell of a new address by this event; the browser's buttons by the
  // other one. A component of Dash that follows the address would undo what pages keep in it.
  for (const name of ["_dashprivate_pushstate", "popstate"]) {
    window.addEventListener(name, () => dash_clientside.set_props("place", { data: Date.now() }));
  }

  rlsched.go = function (address) {
    window.history.pushState({}, "", address);
    window.dispatchEvent(new CustomEvent("_dashprivate_pushstate"));
    window.scrollTo(0, 0);
  };

  // Charts that stand still look like runs that do. For an answer that never comes Dash would wait
  // for ever, and a page cannot go on from what another process counted.
  const ask = window.fetch;
  let process = null;
  window.fetch = async function (...question) {
    const reply = await ask
      .apply(this, question)
      .catch(() => new Response("nobody answers", { status: 503 }));
    const away = document.getElementById("away");
    if (away) away.hidden = reply.ok;
    const other = reply.ok && reply.headers.get("X-Rlsched-Process");
    if (other && process && other !== process) window.location.reload();
    process = other || process;
    return reply;
  };

  function save(name, type, text) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  // In charts, names are markup.
  const plain = (text) => text.replaceAll("&lt;", "<").replaceAll("&amp;", "&");

  const cell = (value) => {
    const text = value === null || value === undefined ? "" : plain(String(value));
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };

  rlsched.csv = function (plot) {
    // Bars that begin somewhere tell in their customdata what they are, and when they end.
    const spans = plot.data.some((trace) => trace.base);
    const lines = [spans ? "series,place,from,to,name" : "series,x,y"];
    for (const trace of plot.data) {
      const xs = trace.x || [];
      const ys = trace.y || [];
      for (let i = 0; i < xs.length; i++) {
        const row = spans ? [ys[i], trace.base[i], ...trace.customdata[i].slice(0, 2)] : [xs[i], ys[i]];
        lines.push([trace.name, ...row].map(cell).join(","));
      }
    }
    return lines.join("\n") + "\n";
  };

  function picture(plot, filename) {
    const light = root.getAttribute("data-mantine-color-scheme") !== "dark";
    const look = {
      paper_bgcolor: light ? "#ffffff" : "#1f1f1f",
      font: Object.assign({}, plot.layout.font, { color: light ? "#343a40" : "#ced4da" }),
    };
    const shown = { data: plot.data, layout: Object.assign({}, plot.layout, look) };
    const size = { width: plot.clientWidth, height: plot.clientHeight, scale: 2 };
    return Plotly.downloadImage(shown, { format: "png", filename, ...size });
  }

  function plotOf(id) {
    const element = document.getElementById(id);
    return element && element.querySelector(".js-plotly-plot");
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest && event.target.closest(".export[data-chart]");
    if (!button) return;
    const plot = plotOf(button.dataset.chart);
    if (!plot) return;
    const name = button.dataset.name.toLowerCase().replace(/[^a-z0-9]+/g, "-");
    if (button.dataset.kind === "csv") save(`${name}.csv`, "text/csv", rlsched.csv(plot));
    else picture(plot, name);
  });
})();
