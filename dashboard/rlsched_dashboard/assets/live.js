"use strict";
/* Live refresh, the view in the address, the frame's settings. */
window.dash_clientside = window.dash_clientside || {};

window.dash_clientside.live = {
  // A tick goes through while the page is seen, wanted live, and the last refresh is painted.
  tick(n, busy, live) {
    if (document.hidden || busy || !live) return window.dash_clientside.no_update;
    return n;
  },

  // A page that could not be made is asked for again.
  again(n, zone) {
    if (!n || document.hidden) return window.dash_clientside.no_update;
    return window.dash_clientside.shell.view(null, zone);
  },

  // Keeps what is set on the page in the address, without a step in the browser's history.
  address(names, values) {
    const query = new URLSearchParams(window.location.search);
    names.forEach((name, place) => {
      const value = values[place];
      const text = value === null || value === undefined || value === false ? "" :
        typeof value === "object" ? JSON.stringify(value) : String(value);
      if (text === "" || text === "{}" || text === "[]") query.delete(name);
      else query.set(name, text);
    });
    const search = query.toString();
    const address = window.location.pathname + (search ? `?${search}` : "");
    window.history.replaceState(window.history.state, "", address);
    return search;
  },
};

window.dash_clientside.shell = {
  theme(choice) {
    window.localStorage.setItem("mantine-color-scheme-value", choice);
    rlsched.paint(choice);
    return window.dash_clientside.no_update;
  },

  // What the address bar asks for: read there, as pages write to it behind the app's back.
  view(place, zone) {
    const local = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
    const query = Object.fromEntries(new URLSearchParams(window.location.search));
    return { path: window.location.pathname, query, zone: zone === "UTC" ? "UTC" : local };
  },

  navigation(opened) {
    return { width: 190, breakpoint: "sm", collapsed: { mobile: !opened } };
  },

  close() {
    return false;
  },
};
