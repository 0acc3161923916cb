// One job.

import { TimeChart } from "./charts.js";
import { duration, figure, h, milliseconds, moment, number, percent, show, table } from "./dom.js";
import { eta, phase, progress, workers } from "./list.js";

const MOST_POINTS = 1000;
const PHASES = { detect: "loss detected", decide: "decided", connect: "connected", transfer: "state sent", first_step: "first step" };
const USES = { training: "training", rescaling: "rescaling", waiting: "waiting", redone: "done again" };

export class JobPage {
  constructor(key) {
    this.key = key;
    this.job = null;
    this.figures = { time: [], step: [], loss: [], ready: [], desired: [] };
    this.sections = {};
    this.title = h("h1", { id: "title", tabindex: -1 }, key.split("/")[1]);
    this.head = h("div", { class: "head" }, this.title);
    this.state = h("span");
    this.head.append(this.state);
    this.facts = h("dl", { class: "facts" });
    this.size = new TimeChart("Workers", (v) => number(Math.round(v)), { whole: true });
    this.loss = new TimeChart("Loss", figure, { floor: null });
    this.since = h("p", { class: "dim" });
    const section = (name, heading) => {
      this.sections[name] = h("div");
      return h("section", { id: name, "aria-labelledby": `${name}-heading`, hidden: true }, h("h2", { id: `${name}-heading` }, heading), this.sections[name]);
    };
    this.element = h("article", {},
      h("p", { class: "crumb" }, h("a", { href: "#/" }, "Jobs"), ` / ${key.split("/")[0]}`),
      this.head, this.facts,
      section("why", "Why this size"),
      section("failure", "The newest failure"),
      h("section", { "aria-label": "Over time" }, h("div", { class: "charts" }, this.size.element, this.loss.element), this.since),
      section("rescales", "Rescales"),
      section("workers", "Workers"),
      section("ledger", "Use of the accelerator time"),
      section("events", "Events"),
      section("conditions", "Conditions"),
    );
  }

  /** Update the job; returns the text for screen readers. */
  take(data) {
    const before = this.job;
    const { figures, ...job } = data.job;
    this.job = job;
    if (figures) this.figures = figures;
    else this.append(Date.parse(data.now) / 1000, job);
    this.paint();
    if (!before) return [];
    const changes = [];
    if (before.phase !== job.phase) changes.push(`${job.name} is ${job.phase}`);
    if (job.rescales[0] && job.rescales[0].time !== before.rescales[0]?.time) changes.push(`${job.name}: ${sentence(job.rescales[0])}`);
    return changes;
  }

  append(time, job) {
    const f = this.figures;
    const last = f.time.length - 1;
    if (last >= 0 && f.step[last] === job.step && f.ready[last] === job.ready && f.desired[last] === job.desired) return;
    for (const [name, value] of Object.entries({ time, step: job.step, loss: job.loss, ready: job.ready, desired: job.desired })) {
      f[name].push(value);
      if (f[name].length > MOST_POINTS) f[name] = f[name].filter((_, i) => i % 2 === 0);
    }
  }

  paint(health = this.health) {
    this.health = health;
    const job = this.job;
    if (!job) return;
    show(this.state, job.phase, () => phase(job.phase));
    this.paintFacts(job);
    this.section("why", job.explain || job.why ? [job.explain, job.why] : null, () => why(job));
    this.section("failure", job.lastFailure, () => failure(job.lastFailure));
    this.paintCharts(job);
    this.section("rescales", job.explain ? job.rescales : null, () => rescales(job.rescales));
    this.section("workers", job.workers ? [job.workers, job.workersLeftOut, job.excludedNodes] : null, () => pods(job));
    this.section("ledger", job.usage, () => ledger(job.usage));
    this.section("events", job.events, () => events(job.events));
    this.section("conditions", job.conditions?.length ? job.conditions : null, () => conditions(job.conditions));
  }

  section(name, data, build) {
    const element = this.sections[name];
    element.parentElement.hidden = data === null || data === undefined;
    if (!element.parentElement.hidden) show(element, data, build);
  }

  paintFacts(job) {
    const restarts = job.restarts && Object.entries(job.restarts).filter(([, n]) => n).map(([cause, n]) => `${n} ${cause}`).join(", ");
    const facts = [
      [job.groupSize > 1 ? `Groups of ${job.groupSize} workers` : "Workers", () => workers(job), job.desired === null ? null : [job.ready, job.desired, job.max, job.phase]],
      ["Bounds", () => `${job.min} to ${job.max}`, [job.min, job.max]],
      ["Queue", () => job.queue, job.queue],
      ["Step", () => progress(job), [job.step, job.of]],
      ["Done in", () => eta(job), eta(job)],
      ["Loss", () => figure(job.loss), job.loss],
      ["Samples per second", () => number(job.pace), job.pace],
      ["Batch", () => batch(job.batch), job.batch],
      ["Shares of the slowest ranks", () => shares(job.shares), job.shares?.length ? job.shares : null],
      ["Effective samples", () => `${number(job.effectiveSamples)} of ${number(job.samples)}`, job.effectiveSamples],
      ["Goodput", () => percent(job.goodput), job.goodput],
      ["Generation", () => `${job.generation.number} (${job.generation.reason})`, job.generation],
      ["Workers replaced", () => restarts, restarts],
      ["Created", () => moment(job.created), job.created],
    ].filter(([name, , data]) => data !== null && data !== undefined && data !== "" && !(name === "Bounds" && job.min === null));
    show(this.facts, facts.map(([name, , data]) => [name, data]), () =>
      facts.map(([name, build]) => h("div", {}, h("dt", {}, name), h("dd", {}, build()))));
  }

  paintCharts(job) {
    const f = this.figures;
    const marks = (job.rescales ?? []).map((r) => ({ time: Date.parse(r.time) / 1000, words: sentence(r) }));
    this.size.draw({
      times: f.time, marks, stacked: false,
      lines: [
        { name: "training", values: f.ready, kind: "steps", colour: 0, filled: true },
        { name: "desired", values: f.desired, kind: "steps", colour: "rest", dashed: true },
      ],
    });
    const known = f.loss.some((v) => v !== null);
    this.loss.draw({
      times: known ? f.time : [], marks, stacked: false, note: "this job has reported no loss",
      lines: [{ name: "loss", values: f.loss, kind: "line", colour: 1 }],
    });
    const started = this.health?.started;
    show(this.since, started, () => started ? ["Data since this dashboard started (", moment(started), "). Vertical lines are rescales."] : []);
  }
}

function batch(found) {
  const noise = found.noiseScale === null ? "noise scale not measured yet" : `noise scale ${number(found.noiseScale)}, efficiency ${figure(found.efficiency)}`;
  return `${number(found.samples)} samples, ${noise}`;
}

function shares(found) {
  const words = found.slice(0, 4).map((one) => `rank ${one.rank}: ${figure(one.share)} (${figure(one.samplesPerSecond)} samples/s)`);
  const held = found.filter((one) => one.limit).pop();
  const bound = held ? `; rank ${held.rank} is held at ${figure(held.share)} (${held.limit === "Loss" ? "a loss after its share had grown" : "spec.maxShare"})` : "";
  return words.join(", ") + (found.length > 4 ? ", …" : "") + bound;
}

function sentence(rescale) {
  const lost = rescale.lost ? `, ${rescale.lost} steps repeated` : "";
  return `${rescale.from} to ${rescale.to} ranks (${rescale.reason}), ${duration(rescale.pause)} pause${lost}`;
}

function why(job) {
  const reasons = (job.explain ?? []).map((reason) => h("li", {}, reason.text, reason.change ? h("span", { class: "remedy" }, reason.change) : null));
  const first = job.why && !(job.explain ?? []).some((reason) => reason.text.includes(job.why)) ? h("li", {}, job.why) : null;
  return h("ul", { class: "reasons" }, first, reasons);
}

function failure(last) {
  const rank = last.rank === null ? "" : `rank ${last.rank} of `;
  return [
    h("p", {}, h("strong", {}, last.reason), ` in ${rank}${last.worker}, `, moment(last.time), ` (counts as ${last.cause}): ${last.message}`),
    last.logTail ? [h("p", { class: "dim" }, "The last lines of this rank:"), h("pre", { class: "log", tabindex: 0, "aria-label": "Last lines of the log" }, h("code", {}, last.logTail))] : null,
  ];
}

function rescales(all) {
  if (!all.length) return h("p", { class: "dim" }, "None in the last hour or since this dashboard started.");
  const longest = Math.max(...all.map((r) => r.phases.reduce((sum, p) => sum + p.seconds, 0)), 0.001);
  const used = Object.keys(PHASES).filter((name) => all.some((r) => r.phases.some((p) => p.name === name)));
  const rows = all.map((r) => [
    moment(r.time), `${r.from} → ${r.to}`, r.reason,
    r.lost ? `${duration(r.pause)}, ${number(r.lost)} steps repeated` : duration(r.pause), phases(r, longest),
  ]);
  return [
    h("ul", { class: "legend" }, used.map((name) => h("li", {}, h("span", { class: `swatch p-${name}`, "aria-hidden": "true" }), PHASES[name]))),
    table("Rescales, newest first", ["When", "Ranks", "Why", "Pause", "Phases"], rows, "rescales"),
    h("p", { class: "dim" }, "In a planned change ranks connect during training, outside of the pause. The first step counts from the arrival of the state. Found in the events of the last hour and in what this dashboard has seen."),
  ];
}

/** A bar of the pause, divided into its phases, and the same as text. */
function phases(rescale, longest) {
  if (!rescale.phases.length) return "";
  const planned = !rescale.phases.some((p) => p.name === "detect");
  const bar = h("span", { class: "phases", "aria-hidden": "true" }, rescale.phases.map((p) => {
    const part = h("span", { class: `p-${p.name}${planned && p.name === "connect" ? " beside" : ""}` });
    part.style.width = `${(100 * p.seconds) / longest}%`;
    return part;
  }));
  return [bar, h("span", { class: "phase-words" }, rescale.phases.map((p) => `${PHASES[p.name] ?? p.name} ${milliseconds(p.seconds)}`).join(" · "))];
}

function pods(job) {
  const rows = job.workers.map((w) => [
    w.name, h("span", { class: `phase ${w.health || w.phase.toLowerCase()}` }, w.health || w.phase), w.node,
    w.started ? moment(w.started) : "", [w.note].filter(Boolean),
  ]);
  return [
    rows.length ? table("Workers", ["Pod", "State", "Node", "Started", "Note"], rows) : h("p", { class: "dim" }, "The job has no pods."),
    job.workersLeftOut ? h("p", { class: "dim" }, `and ${number(job.workersLeftOut)} more`) : null,
    job.excludedNodes.length ? [h("h3", {}, "Nodes that new workers avoid"),
      table("Excluded nodes", ["Node", "Why", "Until"], job.excludedNodes.map((n) => [n.node, n.message, new Date(n.until).toLocaleTimeString()]))] : null,
  ];
}

function ledger(usage) {
  const total = Object.keys(USES).reduce((sum, use) => sum + usage[use], 0);
  if (!total) return h("p", { class: "dim" }, "The job has held no accelerators yet.");
  const parts = Object.entries(USES).filter(([use]) => usage[use] > 0);
  return [
    h("div", { class: "ledger", "aria-hidden": "true" }, parts.map(([use]) => {
      const part = h("span", { class: `u-${use}` });
      part.style.width = `${(100 * usage[use]) / total}%`;
      return part;
    })),
    h("ul", { class: "legend" }, parts.map(([use, words]) => h("li", {}, h("span", { class: `swatch u-${use}`, "aria-hidden": "true" }),
      `${words} ${percent(usage[use] / total)}, ${duration(usage[use])}`))),
    h("p", { class: "dim" }, `Accelerator seconds since the job began: ${duration(total)} in all.`),
  ];
}

function events(all) {
  if (!all.length) return h("p", { class: "dim" }, "None in the last hour; the API server deletes older events.");
  return table("Events, newest first", ["When", "Event", "Message"],
    all.map((e) => [moment(e.time), h("span", { class: e.type === "Warning" ? "warning" : "" }, e.count > 1 ? `${e.reason} ×${e.count}` : e.reason), h("span", { class: "message" }, e.message)]));
}

function conditions(all) {
  return table("Conditions", ["Condition", "Holds", "Reason", "Message", "Since"],
    all.map((c) => [c.type, c.status, c.reason, c.message, Number.isNaN(Date.parse(c.lastTransitionTime)) ? "" : moment(c.lastTransitionTime)]));
}
