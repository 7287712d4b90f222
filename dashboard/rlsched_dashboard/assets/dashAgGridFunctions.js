"use strict";
/* What the grids' columns call: formats, the theme, cells. */
window.dashAgGridFunctions = window.dashAgGridFunctions || {};
window.dashAgGridComponentFunctions = window.dashAgGridComponentFunctions || {};

window.dashAgGridFunctions.rlsched = {
  number(value) {
    if (value === null || value === undefined) return "";
    if (typeof value !== "number") return String(value);
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2);
    return Number(value.toPrecision(4)).toLocaleString("en-US", { maximumFractionDigits: 6 });
  },

  duration(value) {
    if (value === null || value === undefined) return "";
    let rest = Math.max(0, Math.round(value));
    const parts = [];
    for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]]) {
      const count = Math.floor(rest / size);
      rest -= count * size;
      if (count || parts.length) parts.push([count, unit]);
    }
    const shown = parts.slice(0, 2).filter(([count]) => count);
    return shown.length ? shown.map((part) => part.join(" ")).join(" ") : "0 s";
  },

  when(value, zone) {
    if (value === null || value === undefined) return "";
    const look = { timeZone: zone, dateStyle: "short", timeStyle: "medium" };
    return new Intl.DateTimeFormat("sv-SE", look).format(value * 1000);
  },

  moment(value, zone) {
    if (value === null || value === undefined) return "";
    const text = window.dashAgGridFunctions.rlsched.when(value, zone);
    const today = window.dashAgGridFunctions.rlsched.when(Date.now() / 1000, zone);
    return text.slice(0, 10) === today.slice(0, 10) ? text.slice(11) : text.slice(5, 16);
  },

  theme(base) {
    const colours = (background, text, border) => ({
      backgroundColor: background,
      foregroundColor: text,
      borderColor: border,
      headerBackgroundColor: background,
      chromeBackgroundColor: background,
    });
    const common = {
      fontFamily: "inherit",
      fontSize: 13,
      headerFontWeight: 600,
      wrapperBorder: false,
      wrapperBorderRadius: 0,
      cellHorizontalPadding: 10,
      accentColor: "#228be6",
    };
    return base
      .withParams(Object.assign({}, common, colours("#ffffff", "#212529", "#e9ecef")), "light")
      .withParams(Object.assign({}, common, colours("#242424", "#dee2e6", "#3b3b3b")), "dark");
  },
};

window.dashAgGridComponentFunctions.State = function (props) {
  if (!props.value) return null;
  return React.createElement("span", { className: `state ${props.value}` }, props.value);
};

window.dashAgGridComponentFunctions.Link = function (props) {
  const href = props.data && props.data[props.href];
  if (!href) return props.value || null;
  const follow = (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    rlsched.go(href);
  };
  return React.createElement("a", { href, onClick: follow, className: "grid-link" }, props.value);
};

// A value beside that of the baseline: itself, and by how much it is more or less.
window.dashAgGridComponentFunctions.Compared = function (props) {
  const { value, data } = props;
  if (value === null || value === undefined || value === "") return null;
  const shown = window.dashAgGridFunctions.rlsched;
  const text = data.kind === "duration" ? shown.duration(value) : shown.number(value);
  const other = data[props.baseline];
  const parts = [React.createElement("span", { key: "value" }, text)];
  if (typeof value === "number" && typeof other === "number" && value !== other) {
    const share = other === 0 ? null : (100 * (value - other)) / Math.abs(other);
    const sign = value > other ? "+" : "\u2212";
    const size = share === null ? shown.number(Math.abs(value - other)) :
      `${Number(Math.abs(share).toPrecision(2)).toLocaleString("en-US")} %`;
    const className = `difference ${value > other ? "more" : "less"}`;
    parts.push(React.createElement("span", { key: "difference", className }, `${sign}${size}`));
  } else if (typeof value === "string" && other !== undefined && value !== other) {
    parts.push(React.createElement("span", { key: "difference", className: "difference more" }, "\u2260"));
  }
  return React.createElement("span", null, parts);
};
