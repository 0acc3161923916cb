// The shown view, its stream, and the state of the connection.

import { Accelerators } from "./accelerators.js";
import { h, moment, setClock, show, write } from "./dom.js";
import { JobPage } from "./job.js";
import { JobList } from "./list.js";
import { follow } from "./stream.js";

const main = document.getElementById("main");
const banner = document.getElementById("banner");
const link = document.getElementById("link");
const state = { health: null, link: "connecting", since: null, view: null, stop: () => {}, gone: false };

function route() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  if (parts[0] === "jobs" && parts.length === 3) return { view: "job", key: `${parts[1]}/${parts[2]}` };
  return { view: parts[0] === "accelerators" ? "accelerators" : "jobs" };
}

function open() {
  const { view, key } = route();
  state.stop();
  state.gone = false;
  document.querySelectorAll("nav a").forEach((a) => {
    if (a.dataset.view === (view === "accelerators" ? view : "jobs")) a.setAttribute("aria-current", "page");
    else a.removeAttribute("aria-current");
  });
  const first = state.view === null;
  state.view = view;
  if (view === "job") openJob(key);
  else openOverview(view);
  state.newView = !first;
  focusTitle();
}

/** Announces a new view to screen readers, once its title is present. */
function focusTitle() {
  const title = [...main.querySelectorAll("h1")].find((heading) => heading.checkVisibility());
  if (!state.newView || !title) return;
  state.newView = false;
  title.focus();
  window.scrollTo(0, 0);
}

const list = new JobList();
const accelerators = new Accelerators();

function openOverview(view) {
  document.title = view === "jobs" ? "Jobs · elastrain" : "Accelerators · elastrain";
  main.replaceChildren((view === "jobs" ? list : accelerators).element);
  const paint = () => (view === "jobs" ? list.paint(state.health, accelerators.devices) : accelerators.paint(accelerators.devices, state.health));
  state.stop = listen("api/stream", {
    jobs(data) {
      announce(list.take(data));
      if (view === "jobs") paint();
    },
    accelerators(data) {
      accelerators.devices = data;
      paint();
    },
  }, paint);
  paint();
}

function openJob(key) {
  const name = key.split("/")[1];
  document.title = `${name} · elastrain`;
  const page = new JobPage(key);
  const waiting = h("div", { class: "empty" });
  let answered = false; // on this connection, which sends an existing job first
  main.replaceChildren(page.element, waiting);
  const paint = () => {
    const known = Boolean(page.job);
    state.gone = known && state.gone;
    page.element.hidden = !known;
    waiting.hidden = known;
    const absent = !known && answered && Boolean(state.health?.listed);
    if (absent) document.title = "No such job · elastrain";
    show(waiting, absent, () => absent
      ? [h("h1", { id: "title", tabindex: -1 }, "No such job"),
        h("p", {}, `No job ${key} exists on this cluster: it was deleted, or never existed. It appears here once it exists.`),
        h("p", {}, h("a", { href: "#/" }, "All jobs"))]
      : h("p", {}, `Reading ${key} …`));
    page.paint(state.health);
    focusTitle();
  };
  let told = false; // of the job, by this connection
  state.stop = listen(`api/stream?job=${encodeURIComponent(key)}`, {
    job(data) {
      told = true;
      state.gone = false;
      document.title = `${name} · elastrain`;
      announce(page.take(data));
      paint();
    },
    gone() {
      state.gone = true;
      announce([`${key} was deleted`]);
    },
  }, () => {
    answered = true;
    if (!told && state.health?.listed && page.job) state.gone = true; // deleted while there was no connection
    paint();
  }, () => { told = answered = false; });
  paint();
}

/** Follow a stream and process the events that all streams share. `painted` runs after a change of health, `lost` without one. */
function listen(path, on, painted, lost = () => {}) {
  const clocked = (listener) => (data) => {
    if (data.now) setClock(data.now);
    listener(data);
    believe();
  };
  const wrapped = Object.fromEntries(Object.entries(on).map(([event, listener]) => [event, clocked(listener)]));
  return follow(path, {
    ...wrapped,
    health: clocked((data) => {
      state.health = data;
      painted();
    }),
  }, (word, since) => {
    state.link = word;
    state.since = since;
    if (word !== "live") lost();
    believe();
  });
}

/** Show whether the data is current, and if not, since when. */
function believe() {
  const health = state.health;
  const lost = state.link === "away" || state.link === "denied";
  const stale = lost || Boolean(health?.stale) || state.gone;
  const problems = (health?.problems ?? []).filter((p) => health.stale || !p.denied);
  link.dataset.state = lost ? "away" : stale ? "stale" : state.link;
  write(document.getElementById("link-words"), lost ? "no connection" : health?.stale ? "cluster away" : state.gone ? "deleted" : state.link);
  document.body.dataset.stale = String(stale);
  const trouble = lost || state.gone || problems.length > 0;
  banner.hidden = !trouble;
  show(banner, [lost, state.link, state.gone, state.since && Math.floor(state.since / 1000), problems], () => {
    if (!trouble) return [];
    if (state.link === "denied") return h("p", {}, h("strong", {}, "This address has no key. "), "Open the address that elastrain dashboard printed in the terminal.");
    if (lost) return h("p", {}, h("strong", {}, "No connection to the dashboard "), "since ", new Date(state.since).toLocaleTimeString(), ". The page shows earlier data and retries and again.");
    if (state.gone) return h("p", {}, h("strong", {}, "This job was deleted. "), "The page shows its last state. ", h("a", { href: "#/" }, "All jobs"));
    const first = problems.reduce((a, b) => (a.since <= b.since ? a : b));
    const what = problems.map((p) => p.what).join(", ");
    return h("p", {}, h("strong", {}, `The cluster's ${what} cannot be read `), "since ", new Date(first.since).toLocaleTimeString(), " (", moment(first.since), "). ",
      health.stale ? "The page shows earlier data and retries. " : "", h("span", { class: "dim" }, first.text));
  });
  if (health) {
    const where = health.namespaces.length ? `namespace ${health.namespaces.join(", ")}` : "all namespaces";
    const denied = health.problems.filter((p) => p.denied).map((p) => `not allowed to read ${p.what}`);
    show(document.getElementById("scope"), [where, denied, health.started], () => [
      `Jobs of ${where}`, denied.map((words) => ` · ${words}`), " · read-only · this dashboard started ", moment(health.started)]);
  }
}

function announce(changes) {
  if (changes.length) write(document.getElementById("announce"), changes.slice(0, 3).join(". "));
}

document.addEventListener("keydown", (event) => {
  const field = document.getElementById("filter");
  if (event.key === "/" && field && !event.ctrlKey && !event.metaKey && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) {
    event.preventDefault();
    field.focus();
  }
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address selects the view
  main.focus();
});
window.addEventListener("hashchange", open);
open();
