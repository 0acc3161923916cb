// Charts over time as SVG, drawn in pixels of their own width, and readable by keyboard: the arrow keys move through time.

import { h, s, now, write } from "./dom.js";

const HEIGHT = 190;
const LEFT = 52;
const RIGHT = 12;
const TOP = 12;
const BOTTOM = 24;
const HALF_LABEL = 28; // half the width of a time with seconds: closer to the right edge the label would be cut
const COLOURS = 8;

const colours = new Map();

/** The number of a name's colour; fixed while the page is open. */
export function colour(name) {
  if (name === "others") return "rest";
  if (!colours.has(name)) colours.set(name, colours.size % COLOURS);
  return colours.get(name);
}

/**
 * A figure that `draw(data)` draws anew. `format` makes a value readable.
 *
 * data: {
 *   times: [seconds], lines: [{name, values, kind: "line" | "steps", colour, dashed, filled}], stacked: bool,
 *   marks: [{time, words}], note: string
 * }
 * A value of null is a gap. Stacked lines lie on each other, except those with `dashed`.
 */
export class TimeChart {
  constructor(title, format, { floor = 0, whole = false } = {}) {
    this.title = title;
    this.format = format;
    this.floor = floor;
    this.whole = whole;
    this.data = null;
    this.cursor = null;
    this.pending = false;
    this.svg = s("svg", {
      class: "chart", role: "img", tabindex: 0,
      on: {
        pointermove: (event) => this.point(event),
        pointerleave: () => this.at(null),
        keydown: (event) => this.key(event),
        blur: () => this.at(null),
      },
    });
    this.readout = h("p", { class: "readout", "aria-live": "off" });
    this.legend = h("ul", { class: "legend" });
    this.element = h("figure", { class: "figure" },
      h("figcaption", {}, h("span", { class: "figure-title" }, title), this.readout), this.svg, this.legend);
    new ResizeObserver(() => this.later()).observe(this.element);
  }

  draw(data) {
    this.data = data;
    this.later();
  }

  later() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      if (this.data && this.element.isConnected) this.paint();
    });
  }

  paint() {
    const width = Math.max(240, Math.floor(this.element.clientWidth));
    const { times, lines, stacked, marks = [] } = this.data;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.svg.setAttribute("height", HEIGHT);
    this.svg.setAttribute("aria-label", this.words());
    this.drawLegend(lines);
    if (!times.length) {
      this.svg.replaceChildren(s("text", { x: width / 2, y: HEIGHT / 2, class: "nothing" }, this.data.note || "nothing yet"));
      write(this.readout, "");
      return;
    }
    const end = Math.max(now() / 1000, times[times.length - 1]);
    const begin = Math.min(times[0], end - 60);
    const stacks = stack(lines, stacked);
    const [low, high, ticks] = this.scale(stacks);
    const x = (time) => LEFT + ((time - begin) / (end - begin)) * (width - LEFT - RIGHT);
    const y = (value) => TOP + (1 - (value - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);
    this.geometry = { x, y, begin, end, width, stacks };
    this.svg.replaceChildren(
      ...ticks.map((tick) => s("g", { class: "grid" },
        s("line", { x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick) }),
        s("text", { x: LEFT - 6, y: y(tick) + 4, class: "at-y" }, this.format(tick)))),
      ...clock(begin, end, width).filter((time) => x(time) <= width - HALF_LABEL).map((time) =>
        s("text", { x: x(time), y: HEIGHT - 6, class: "at-x" }, hour(time, end - begin))),
      ...marks.filter((mark) => mark.time >= begin).map((mark) =>
        s("line", { class: "mark-line", x1: x(mark.time), x2: x(mark.time), y1: TOP, y2: HEIGHT - BOTTOM },
          s("title", {}, mark.words))),
      ...stacks.flatMap((line) => this.drawLine(line, times, end, x, y)),
      (this.hand = s("g", { class: "hand" })),
    );
    this.at(this.cursor);
  }

  drawLine(line, times, end, x, y) {
    const paths = [];
    for (const run of runs(line, times, end)) {
      const top = path(run.map((p) => [x(p.time), y(p.top)]), line.kind === "steps");
      if (line.filled) {
        const back = path(run.map((p) => [x(p.time), y(p.bottom)]), line.kind === "steps").reverse();
        paths.push(s("path", { class: `area c${line.colour}`, d: `M${points(top)}L${points(back)}Z` }));
      }
      paths.push(s("path", { class: `stroke c${line.colour}${line.dashed ? " dashed" : ""}`, d: `M${points(top)}` }));
      if (run.length === 1 && line.kind === "line") paths.push(s("circle", { class: `dot c${line.colour}`, cx: top[0][0], cy: top[0][1], r: 2.5 }));
    }
    return paths;
  }

  scale(stacks) {
    const values = stacks.flatMap((line) => line.tops.filter((v) => v !== null));
    let high = Math.max(...values, this.floor);
    let low = this.floor === null ? Math.min(...values) : this.floor;
    if (high <= low) high = low + (this.whole ? 1 : Math.abs(low) / 10 || 1);
    const step = nice((high - low) / 4, this.whole);
    low = Math.floor(low / step) * step;
    high = Math.ceil(high / step - 1e-9) * step;
    const ticks = [];
    for (let tick = low; tick <= high + step / 2; tick += step) ticks.push(Number(tick.toPrecision(12)));
    return [low, ticks[ticks.length - 1], ticks];
  }

  drawLegend(lines) {
    const names = lines.filter((line) => line.legend !== false).map((line) => [line.name, line.colour, line.dashed, line.link]);
    const seen = JSON.stringify(names);
    if (this.legend.seen === seen) return;
    this.legend.seen = seen;
    this.legend.replaceChildren(...names.map(([name, shade, dashed, link]) => h("li", {},
      h("span", { class: `swatch c${shade}${dashed ? " dashed" : ""}`, "aria-hidden": "true" }), link ? h("a", { href: link }, name) : name)));
  }

  words() {
    const { times, lines, note } = this.data;
    if (!times.length) return `${this.title}: ${note || "nothing yet"}`;
    const last = lines.map((line) => [line.name, line.values.findLast((v) => v !== null)]).filter(([, v]) => v !== undefined);
    return `${this.title} over time. Now: ${last.map(([name, v]) => `${name} ${this.format(v)}`).join(", ") || "not known"}. Arrow keys read the values.`;
  }

  // ---- readout of one moment -----------------------------------------------------------------------------------------
  point(event) {
    if (!this.geometry || !this.data.times.length) return;
    const box = this.svg.getBoundingClientRect();
    const { begin, end, width } = this.geometry;
    const at = ((event.clientX - box.left) / box.width) * width;
    const time = begin + ((at - LEFT) / (width - LEFT - RIGHT)) * (end - begin);
    this.at(this.nearest(time), false);
  }

  nearest(time) {
    const { times } = this.data;
    let best = 0;
    for (let i = 1; i < times.length; i += 1) if (Math.abs(times[i] - time) < Math.abs(times[best] - time)) best = i;
    return best;
  }

  key(event) {
    if (!this.data?.times.length) return;
    const last = this.data.times.length - 1;
    const from = this.cursor ?? last;
    const to = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: last, PageUp: from - 10, PageDown: from + 10 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.at(Math.min(last, Math.max(0, to)), true);
  }

  at(index, spoken = false) {
    this.cursor = index;
    this.readout.setAttribute("aria-live", spoken ? "polite" : "off");
    if (!this.hand) return;
    const { times, lines } = this.data;
    if (index === null || index >= times.length) {
      this.hand.replaceChildren();
      write(this.readout, "");
      return;
    }
    const { x } = this.geometry;
    this.hand.replaceChildren(s("line", { x1: x(times[index]), x2: x(times[index]), y1: TOP, y2: HEIGHT - BOTTOM }));
    const told = lines.filter((line) => line.values[index] !== null && !(line.filled && line.values[index] === 0 && lines.length > 4));
    const when = new Date(times[index] * 1000).toLocaleTimeString();
    write(this.readout, `${when}: ${told.map((line) => `${line.name} ${this.format(line.values[index])}`).join(", ") || "no data"}`);
  }
}

/** Lines with their tops and bottoms when stacked. */
function stack(lines, stacked) {
  let below = null;
  return lines.map((line) => {
    if (!stacked || line.dashed) return { ...line, tops: line.values, bottoms: line.values.map(() => 0) };
    const bottoms = below ?? line.values.map(() => 0);
    const tops = line.values.map((v, i) => bottoms[i] + (v ?? 0));
    below = tops;
    return { ...line, tops, bottoms };
  });
}

/** Stretches without a gap. The last stretch of a step line extends to now. */
function runs(line, times, end) {
  const found = [];
  let run = [];
  line.tops.forEach((top, i) => {
    if (top === null) {
      if (run.length) found.push(run);
      run = [];
    } else run.push({ time: times[i], top, bottom: line.bottoms[i] });
  });
  if (run.length) {
    if (line.kind === "steps") run.push({ ...run[run.length - 1], time: end });
    found.push(run);
  }
  return found;
}

function path(corners, steps) {
  if (!steps) return corners;
  return corners.flatMap(([px, py], i) => (i ? [[px, corners[i - 1][1]], [px, py]] : [[px, py]]));
}

function points(corners) {
  return corners.map(([px, py]) => `${px.toFixed(1)},${py.toFixed(1)}`).join("L");
}

/** The next of 1, 2, 5, 10, ... */
function nice(step, whole) {
  const size = 10 ** Math.floor(Math.log10(step));
  const found = [1, 2, 5, 10].find((factor) => factor * size >= step * 0.999) * size;
  return whole ? Math.max(1, Math.round(found)) : found;
}

const SPANS = [10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800];

/** Round moments for the axis, a label's width apart. */
function clock(begin, end, width) {
  const most = Math.max(2, Math.floor((width - LEFT - RIGHT) / 75));
  const span = SPANS.find((seconds) => (end - begin) / seconds <= most) ?? (end - begin) / most;
  const zone = new Date(end * 1000).getTimezoneOffset() * 60;
  const found = [];
  for (let time = Math.ceil((begin - zone) / span) * span + zone; time <= end; time += span) found.push(time);
  return found;
}

function hour(time, range) {
  const date = new Date(time * 1000);
  if (range > 172800) return date.toLocaleDateString(undefined, { month: "short", day: "numeric" });
  const parts = { hour: "2-digit", minute: "2-digit", hour12: false, ...(range < 300 ? { second: "2-digit" } : {}) };
  return date.toLocaleTimeString(undefined, parts);
}
