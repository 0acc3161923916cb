// Server-sent events, resumed while the page is open.

const SILENT_MS = 30000; // three heartbeats
const DELAYS_MS = [1000, 2000, 5000, 10000, 20000];

/**
 * Follow `path`. `on` has a listener for each event; `onState(state, since)` is told "live", "away" (no connection, since
 * when) or "denied" (the key is not there). Returns a function that ends it.
 */
export function follow(path, on, onState) {
  let source = null;
  let failures = 0;
  let since = null;
  let timer = null;
  let watchdog = null;
  let ended = false;

  function alive() {
    clearTimeout(watchdog);
    watchdog = setTimeout(() => again(), SILENT_MS);
    if (failures || since === null) onState("live", null);
    failures = 0;
    since = 0;
  }

  function open() {
    source = new EventSource(path);
    source.addEventListener("heartbeat", () => alive());
    for (const [event, listener] of Object.entries(on)) {
      source.addEventListener(event, (message) => {
        alive();
        listener(JSON.parse(message.data));
      });
    }
    source.onerror = async () => {
      const refused = source.readyState === EventSource.CLOSED; // an answer other than a stream
      source.close();
      const answer = refused ? await status() : 0;
      if (ended) return;
      if (answer === 401) location.assign("login");
      else if (answer === 403) onState("denied", null);
      else again();
    };
  }

  async function status() {
    const enough = new AbortController();
    const timeout = setTimeout(() => enough.abort(), 5000);
    try {
      return (await fetch(path, { signal: enough.signal })).status;
    } catch {
      return 0;
    } finally {
      clearTimeout(timeout);
      enough.abort(); // if it is a stream
    }
  }

  function again() {
    if (ended) return;
    clearTimeout(watchdog);
    clearTimeout(timer);
    source.close();
    if (!failures) since = Date.now();
    onState("away", since);
    const delay = DELAYS_MS[Math.min(failures, DELAYS_MS.length - 1)];
    failures += 1;
    timer = setTimeout(open, delay * (0.75 + Math.random() / 2)); // spreads the browsers' attempts
  }

  open();
  return () => {
    ended = true;
    clearTimeout(watchdog);
    clearTimeout(timer);
    source.close();
  };
}
