// The use of the cluster's accelerators, now and since the dashboard's start.

import { TimeChart, colour } from "./charts.js";
import { h, href, moment, number, show, table } from "./dom.js";

export class Accelerators {
  constructor() {
    this.by = "byJob";
    this.resource = null;
    this.chart = new TimeChart("In use", (v) => number(Math.round(v)), { whole: true });
    this.choice = h("div", { class: "tools" });
    this.numbers = h("p", { class: "lead" });
    this.nodes = h("div");
    this.since = h("p", { class: "dim" });
    this.none = h("div", { class: "empty", hidden: true });
    this.shown = h("div", {}, this.choice, this.numbers, this.chart.element, this.since,
      h("section", { "aria-labelledby": "nodes-heading" }, h("h2", { id: "nodes-heading" }, "Nodes"), this.nodes));
    this.element = h("section", { "aria-labelledby": "title" }, h("h1", { id: "title", tabindex: -1 }, "Accelerators"), this.none, this.shown);
  }

  paint(devices = this.devices, health = this.health) {
    this.devices = devices;
    this.health = health;
    if (!devices) return;
    const found = devices.resources.find((r) => r.resource === this.resource) ?? devices.resources[0];
    this.none.hidden = Boolean(found);
    this.shown.hidden = !found;
    if (!found) {
      show(this.none, devices.nodesKnown, () => [h("h2", {}, "No accelerators"),
        h("p", {}, devices.nodesKnown ? "No node has accelerators, and no job has workers." : "No shown job has workers.")]);
      return;
    }
    show(this.choice, [devices.resources.map((r) => r.resource), found.resource, this.by], () => this.choices(devices, found));
    show(this.numbers, [found.held, found.total, found.resource], () => [
      h("strong", {}, found.total === null ? number(found.held) : `${number(found.held)} of ${number(found.total)}`), ` ${found.resource} held by jobs`,
    ]);
    this.paintChart(devices.history[found.resource]?.[this.by], found);
    show(this.nodes, [found.nodes, found.nodesLeftOut, devices.nodesKnown], () => nodes(found, devices.nodesKnown));
    const started = this.health?.started;
    show(this.since, started, () => (started ? ["Kept in memory since this dashboard started (", moment(started), ")."] : []));
  }

  choices(devices, found) {
    const radio = (value, words) => h("label", {}, h("input", {
      type: "radio", name: "by", value, checked: this.by === value, on: { change: () => { this.by = value; this.paint(); this.choice.querySelector("input:checked").focus(); } },
    }), words);
    return [
      devices.resources.length > 1 ? h("label", {}, "Resource", h("select", { on: { change: (event) => { this.resource = event.target.value; this.paint(); } } },
        devices.resources.map((r) => h("option", { value: r.resource, selected: r.resource === found.resource }, r.resource)))) : null,
      h("fieldset", {}, h("legend", {}, "Coloured by"), radio("byJob", "job"), radio("byNode", "node")),
    ];
  }

  paintChart(history, found) {
    if (!history) return;
    const parts = Object.entries(history.parts);
    const lines = parts.map(([name, values]) => ({
      name, values, kind: "steps", colour: colour(name), filled: true, link: this.by === "byJob" && name !== "others" ? href(name) : null,
    }));
    if (found.total !== null) lines.push({ name: "all there are", values: history.total, kind: "steps", colour: "rest", dashed: true });
    this.chart.draw({ times: history.time, lines, stacked: true });
  }
}

function nodes(found, known) {
  const rows = found.nodes.map((node) => [
    node.name,
    node.ready === null ? "" : node.ready ? (node.cordoned ? "cordoned" : "ready") : h("span", { class: "warning" }, "not ready"),
    node.total === null ? number(node.held) : `${number(node.held)} of ${number(node.total)}`,
    bar(node),
  ]);
  return [
    table("Nodes and the holders of their accelerators", ["Node", "State", "Held", "By"], rows, "nodes"),
    found.nodesLeftOut ? h("p", { class: "dim" }, `and ${number(found.nodesLeftOut)} more`) : null,
    known ? h("p", { class: "dim" }, "Other pods may hold the rest; the dashboard does not watch them.")
      : h("p", { class: "dim" }, "These are the nodes of the shown workers; a dashboard for all namespaces lists all nodes."),
  ];
}

function bar(node) {
  const whole = Math.max(node.total ?? 0, node.held, 1);
  const parts = h("span", { class: "shares", "aria-hidden": "true" }, node.jobs.map((job) => {
    const part = h("span", { class: `c${colour(job.key)}` });
    part.style.width = `${(100 * job.count) / whole}%`;
    return part;
  }));
  const words = node.jobs.map((job, i) => [i ? ", " : "", h("a", { href: href(job.key) }, job.key), job.count > 1 ? ` ×${job.count}` : ""]);
  return [parts, h("span", {}, words.length ? words : h("span", { class: "dim" }, "no job"))];
}
