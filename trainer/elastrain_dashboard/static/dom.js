// Elements. Text is never parsed as HTML: names, messages and log lines come from other users' jobs.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; strings become text, null and false nothing. `on` holds listeners. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...flat(children));
  return element;
}

function flat(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false && child !== "");
}

/** Replace the content of `element` if `data` has changed. Otherwise focus and selection stay. */
export function show(element, data, build) {
  const seen = JSON.stringify(data) ?? "";
  if (element.shownData === seen) return;
  element.shownData = seen;
  element.replaceChildren(...flat([build()]));
}

/** Set a text, if it differs. */
export function write(element, words) {
  if (element.textContent !== words) element.textContent = words;
}

/** A table with a caption for screen readers, headers, and rows of cells (text or elements). */
export function table(caption, headers, rows, kind = "") {
  // Explicit roles, since browsers drop them where CSS lays a table out as cards on a phone.
  return h("table", { class: kind, role: "table" },
    h("caption", { class: "unseen" }, caption),
    h("thead", { role: "rowgroup" },
      h("tr", { role: "row" }, headers.map((words) => h("th", { scope: "col", role: "columnheader" }, words)))),
    h("tbody", { role: "rowgroup" }, rows.map((cells) => h("tr", { role: "row" }, cells.map((cell, i) =>
      i === 0
        ? h("th", { scope: "row", role: "rowheader", "data-label": headers[i] }, cell)
        : h("td", { role: "cell", "data-label": headers[i], class: isEmpty(cell) ? "none" : null }, cell))))));
}

function isEmpty(cell) {
  return cell === null || cell === undefined || cell === "" || (Array.isArray(cell) && cell.every(isEmpty));
}

/** A moment as "5 s ago", kept current (see `age`), with the date as a tooltip. */
export function moment(iso) {
  if (!iso) return "";
  const element = h("time", { datetime: iso, title: new Date(iso).toLocaleString() });
  element.textContent = age(iso);
  return element;
}

let ahead = 0;

/** The server's clock, in milliseconds: the browser's may be wrong. */
export function now() {
  return Date.now() + ahead;
}

/** Set it by a time that the server has sent; anything else is ignored. */
export function setClock(iso) {
  const time = Date.parse(iso);
  if (Number.isFinite(time)) ahead = time - Date.now();
}

export function age(iso) {
  const seconds = (now() - Date.parse(iso)) / 1000;
  return seconds < 2 ? "now" : `${seconds < 10 ? `${Math.floor(seconds)} s` : duration(seconds)} ago`;
}

setInterval(() => {
  for (const element of document.querySelectorAll("time[datetime]")) write(element, age(element.dateTime));
}, 5000);

/** Seconds in a readable unit: 0.31 s, 42 s, 12 min, 3.4 h, 2.1 d. */
export function duration(seconds) {
  if (seconds < 1) return `${seconds.toFixed(2)} s`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${(seconds / 86400).toFixed(1)} d`;
}

export function milliseconds(seconds) {
  return seconds < 10 ? `${Math.round(seconds * 1000)} ms` : duration(seconds);
}

const whole = new Intl.NumberFormat("en");

export function number(value) {
  return value === null || value === undefined ? "" : whole.format(value);
}

/** A number with about four digits, as for losses. */
export function figure(value) {
  if (value === null || value === undefined) return "";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e5 || size < 1e-3 ? value.toExponential(2) : value.toFixed(Math.max(0, Math.min(4, 3 - Math.floor(Math.log10(size)))));
}

export function percent(part) {
  return part === null || part === undefined ? "" : `${(100 * part).toFixed(part > 0.0005 && part < 0.995 ? 1 : 0)} %`;
}

export function href(key) {
  return `#/jobs/${key.split("/").map(encodeURIComponent).join("/")}`;
}
