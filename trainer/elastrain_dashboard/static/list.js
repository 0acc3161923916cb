// All jobs.

import { duration, figure, h, href, now, number, percent, show, table, write } from "./dom.js";

const MOST_ROWS = 200;
const ORDER = ["Failed", "Rescaling", "Pending", "Running", "Suspended", "Succeeded"];

export function phase(word) {
  return h("span", { class: `phase ${ORDER.includes(word) ? word.toLowerCase() : "unknown"}` }, word);
}

/** "3 of 4", and a picture of it: training, desired and largest number of workers. */
export function workers(row) {
  if (row.desired === null || ((row.phase === "Succeeded" || row.phase === "Failed") && !row.ready)) return "";
  const pips = row.max <= 16
    ? h("span", { class: "pips", "aria-hidden": "true" }, Array.from({ length: row.max }, (_, i) =>
        h("span", { class: i < row.ready ? "on" : i < row.desired ? "desired" : "" })))
    : null;
  return h("span", { class: "size" }, h("span", { class: "count" }, `${row.ready} of ${row.desired}`), pips);
}

export function progress(row) {
  if (row.step === null) return "";
  if (!row.of) return number(row.step);
  const part = Math.min(1, row.step / row.of);
  return h("span", { class: "progress" },
    h("span", {}, `${number(row.step)} / ${number(row.of)}`), h("span", { class: "dim" }, `${Math.floor(100 * part)} %`),
    h("progress", { value: part, max: 1, "aria-hidden": "true" }));
}

export function eta(row) {
  if (!row.eta || row.phase === "Succeeded" || row.phase === "Failed") return "";
  return duration(Math.max(0, (Date.parse(row.eta) - now()) / 1000));
}

const COLUMNS = ["Job", "State", "Workers", "Step", "Loss", "Done in", "Goodput", "Why"];

export class JobList {
  constructor() {
    this.rows = new Map();
    this.elements = new Map();
    this.all = false;
    this.words = h("input", { type: "search", id: "filter", placeholder: "name or namespace", autocomplete: "off", spellcheck: "false", on: { input: () => this.paint() } });
    this.state = h("select", { id: "state", on: { change: () => this.paint() } },
      h("option", { value: "" }, "all"), ORDER.map((word) => h("option", { value: word }, word)));
    this.tiles = h("dl", { class: "tiles" });
    this.table = table("Jobs", COLUMNS, [], "jobs");
    this.body = this.table.querySelector("tbody");
    this.empty = h("div", { class: "empty", hidden: true });
    this.count = h("p", { class: "dim", id: "count" });
    this.more = h("button", { type: "button", hidden: true, on: { click: () => { this.all = true; this.paint(); } } });
    this.tools = h("form", { class: "tools", role: "search", on: { submit: (event) => event.preventDefault() } },
      h("label", { for: "filter" }, "Find", this.words), h("label", { for: "state" }, "State", this.state), this.count);
    this.element = h("section", { "aria-labelledby": "title" },
      h("h1", { id: "title", tabindex: -1 }, "Jobs"), this.tiles, this.tools, this.table, this.empty, this.more);
  }

  /** Update the rows; returns the text for screen readers. */
  take(data) {
    const changes = [];
    if (data.all) this.rows = new Map();
    for (const row of data.rows) {
      const before = this.rows.get(row.key);
      if (before && before.phase !== row.phase) changes.push(`${row.name} is ${row.phase}`);
      else if (before && before.ready !== row.ready) changes.push(`${row.name} trains with ${row.ready} workers`);
      this.rows.set(row.key, row);
    }
    for (const key of data.gone ?? []) {
      changes.push(`${key} was deleted`);
      this.rows.delete(key);
    }
    return changes;
  }

  paint(health = this.health, devices = this.devices) {
    this.health = health;
    this.devices = devices;
    const rows = [...this.rows.values()].sort((a, b) => (a.key < b.key ? -1 : 1));
    this.paintTiles(rows);
    const sought = this.words.value.trim().toLowerCase();
    const found = rows.filter((row) => (!this.state.value || row.phase === this.state.value) && (!sought || row.key.toLowerCase().includes(sought)));
    const shown = this.all ? found : found.slice(0, MOST_ROWS);
    this.paintRows(shown);
    this.more.hidden = shown.length === found.length;
    write(this.more, `Show all ${number(found.length)}`);
    write(this.count, found.length === rows.length ? `${number(rows.length)} jobs` : `${number(found.length)} of ${number(rows.length)} jobs`);
    this.tools.hidden = rows.length === 0;
    this.tiles.hidden = rows.length === 0;
    this.table.hidden = shown.length === 0;
    this.paintEmpty(rows.length, shown.length);
  }

  paintRows(rows) {
    const elements = rows.map((row) => {
      let element = this.elements.get(row.key);
      if (!element) {
        element = table("", COLUMNS, [COLUMNS.map(() => "")]).querySelector("tbody tr");
        this.elements.set(row.key, element);
      }
      const cells = element.children;
      show(cells[0], row.key, () => [h("a", { href: href(row.key) }, row.name), h("span", { class: "namespace" }, row.namespace)]);
      show(cells[1], row.phase, () => phase(row.phase));
      show(cells[2], [row.ready, row.desired, row.max, row.phase], () => workers(row));
      show(cells[3], [row.step, row.of], () => progress(row));
      show(cells[4], row.loss, () => figure(row.loss));
      show(cells[5], eta(row), () => eta(row));
      show(cells[6], row.goodput, () => percent(row.goodput));
      show(cells[7], row.why, () => row.why);
      for (const cell of cells) cell.classList.toggle("none", cell.textContent === "");
      return element;
    });
    // Moved only if the order differs, so that the focus stays.
    elements.forEach((element, i) => {
      if (this.body.children[i] !== element) this.body.insertBefore(element, this.body.children[i] ?? null);
    });
    while (this.body.children.length > elements.length) this.body.lastElementChild.remove();
    for (const key of this.elements.keys()) if (!this.rows.has(key)) this.elements.delete(key);
  }

  paintTiles(rows) {
    const counts = Object.fromEntries(ORDER.map((word) => [word, rows.filter((row) => row.phase === word).length]));
    const busiest = this.devices?.resources[0];
    const tiles = [
      ["training", counts.Running + counts.Rescaling, "running"],
      ["waiting", counts.Pending, "pending"],
      ["failed", counts.Failed, "failed"],
      ["finished", counts.Succeeded, "succeeded"],
    ].filter(([, count], i) => i === 0 || count);
    show(this.tiles, [tiles, busiest?.held, busiest?.total, busiest?.resource], () => [
      ...tiles.map(([words, count, kind]) => h("div", { class: `tile ${kind}` }, h("dt", {}, words), h("dd", {}, number(count)))),
      busiest ? h("div", { class: "tile wide" }, h("dt", {}, `${busiest.resource} in use`),
        h("dd", {}, busiest.total === null ? number(busiest.held) : `${number(busiest.held)} of ${number(busiest.total)}`)) : null,
    ]);
  }

  paintEmpty(jobs, shown) {
    const state = !this.health?.listed ? (this.health?.problems.length ? "unreadable" : "reading") : jobs === 0 ? "none" : shown === 0 ? "filtered" : "";
    this.empty.hidden = state === "";
    show(this.empty, [state, this.health?.namespaces], () => ({
      "": () => [],
      reading: () => h("p", {}, "Reading the jobs of the cluster …"),
      unreadable: () => h("p", {}, "The jobs could not be read yet."),
      filtered: () => h("p", {}, "No job matches. ", h("button", { type: "button", on: { click: () => this.clear() } }, "Show all")),
      none: () => [
        h("h2", {}, "No jobs yet"),
        h("p", {}, this.health.namespaces.length ? `There are no jobs in namespace ${this.health.namespaces.join(", ")}. A job submitted there appears here.` : "There are no jobs on this cluster. A job that is submitted appears here."),
        h("pre", {}, h("code", {}, "elastrain submit job.yaml\nelastrain submit train.py --max 8 --image YOUR-IMAGE --limit nvidia.com/gpu=1")),
      ],
    })[state]());
  }

  clear() {
    this.words.value = "";
    this.state.value = "";
    this.paint();
    this.words.focus();
  }
}
