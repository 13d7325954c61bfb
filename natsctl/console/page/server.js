/**
 * Asks the server of the console, and keeps a view current. The token is in the storage of the tab:
 * a page of another port of this host would get a cookie. A new tab asks the other tabs.
 */

const NAME = "natsctl-console-token";
const ASK_MS = 500; // for the answer of another tab
const LIMIT_MS = 30_000;
const INTERVAL_MS = 250;
const TICK_MS = 1_000;
const STALE_MS = 10_000;
const SILENCE_MS = 20_000;
const RETRY_MS = 2_000;
const AGES_MS = 10_000; // after which a view is loaded again without a change
const RETRIED = ["timeout", "unavailable", "no_daemon", "offline"];

const tabs = new BroadcastChannel(NAME); // only pages of this origin hear it
let asked = null;
let heard = () => {}; // called with the token of another tab

/** Return the token; an empty text if neither this tab nor another one has it. */
async function token() {
  if (!kept()) await (asked ??= askTabs().finally(() => (asked = null)));
  return kept();
}

/** Forget a token that the server refused, in every tab; then one with a newer token answers. */
function dropToken(refused) {
  if (kept() === refused) sessionStorage.removeItem(NAME);
  if (refused) tabs.postMessage({ refused });
}

function askTabs() {
  tabs.postMessage({ wanted: true });
  return new Promise((done) => {
    heard = done;
    setTimeout(done, ASK_MS);
  });
}

function kept() {
  return sessionStorage.getItem(NAME) ?? "";
}

/** Take the token out of the URL, so that nobody shares it; return whether there was one. */
function takeFromUrl() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!given) return false;
  sessionStorage.setItem(NAME, given);
  history.replaceState(null, "", location.pathname + location.search);
  return true;
}

tabs.addEventListener("message", ({ data }) => {
  if (data.wanted && kept()) tabs.postMessage({ token: kept() });
  if (data.refused === kept()) sessionStorage.removeItem(NAME);
  if (data.token && !kept()) sessionStorage.setItem(NAME, data.token);
  if (data.token) heard();
});
window.addEventListener("hashchange", () => {
  if (takeFromUrl()) location.reload(); // the URL of a new console, opened in the tab of an old one
});
takeFromUrl();

/** An error that the server answered, with its reason, or `offline` if there is no answer. */
export class ApiError extends Error {
  constructor(reason, message) {
    super(message);
    this.reason = reason;
  }
}

export async function get(path, query = {}, signal) {
  return (await request(withQuery(path, query), { signal })).json();
}

export async function act(action, body) {
  const answer = await request(`/api/actions/${action}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  return answer.json();
}

/** Return the path with a query; an empty value or 0 is left out. */
export function withQuery(path, query) {
  const given = Object.entries(query).filter(([, value]) => value);
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return text ? `${path}?${text}` : path;
}

/** Yield the name and the data of each event that the server sends, until it ends the stream. */
async function* events(path, query, signal) {
  const answer = await sent(withQuery(path, query), { signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    const blocks = (text + part.value).split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const [, name, data] = /^event: (.*)\ndata: (.*)$/.exec(block);
      yield [name, JSON.parse(data)];
    }
  }
}

async function request(url, options) {
  const limit = AbortSignal.timeout(LIMIT_MS);
  const signal = options.signal ? AbortSignal.any([options.signal, limit]) : limit;
  try {
    return await sent(url, { ...options, signal });
  } catch (error) {
    if (options.signal?.aborted || error instanceof ApiError) throw error;
    if (limit.aborted) throw new ApiError("timeout", "natsctl console did not answer in 30 s");
    throw new ApiError("offline", "natsctl console does not answer; is the command still running?");
  }
}

async function sent(url, options) {
  const used = await token();
  const headers = { ...options.headers, Authorization: `Bearer ${used}` };
  const answer = await fetch(url, { ...options, headers });
  if (answer.status === 401) dropToken(used);
  if (answer.ok) return answer;
  const { error } = await answer.json().catch(() => ({}));
  if (error) throw new ApiError(error.reason, error.message);
  throw new ApiError("failed", `natsctl console answered status ${answer.status}`);
}

/**
 * Loads a view again after each change and each interruption, at most four times a second and never
 * twice at the same time. Silence of `SILENCE_MS` opens a new stream of notices. `failed` gets the
 * error of the last load, or null, and `tell` the state of the connection: its `kind`, and a `text`.
 */
export class Live {
  constructor(query, load, failed, tell) {
    [this._query, this._load, this._failed, this._tell] = [query, load, failed, tell];
    this._ended = new AbortController();
    this._heard = false;
    this._heardMs = Date.now();
    this._state = { connected: true, since_s: 0 };
    this._tick = setInterval(() => this._check(), TICK_MS);
    document.addEventListener("visibilitychange", () => this._showed(), { signal: this._ended.signal });
    this._loads();
    this._open();
  }

  /** Load the view again soon. */
  refresh() {
    this._wanted.resolve();
  }

  close() {
    this._ended.abort();
    clearInterval(this._tick);
    this._stream.abort();
  }

  async _loads() {
    for (const { signal } = this._ended; !signal.aborted;) {
      this._wanted = Promise.withResolvers();
      this._loadedMs = Date.now();
      const error = await this._load(signal).then(() => null, (reason) => reason);
      if (signal.aborted) return;
      this._failed(error);
      if (error && !(error instanceof ApiError)) console.error(error);
      const isRetried = RETRIED.includes(error?.reason);
      await new Promise((ended) => setTimeout(ended, isRetried ? RETRY_MS : INTERVAL_MS));
      if (!isRetried) await this._wanted.promise;
    }
  }

  async _open() {
    this._stream?.abort();
    this._openedMs = Date.now();
    this._stream = new AbortController();
    const { signal } = this._stream;
    try {
      for await (const [name, data] of events("/api/live", this._query, signal)) {
        if (signal.aborted) return;
        this._hear(name, data);
      }
    } catch (error) {
      if (error.reason === "signed_out") this.refresh(); // which says so
    }
    if (signal.aborted) return;
    this._heard = false;
    setTimeout(() => signal.aborted || this._open(), RETRY_MS);
    this._check();
  }

  /** A hidden page has no stream: browsers limit the connections to a server. */
  _showed() {
    this._heardMs = Date.now();
    if (!document.hidden) this._open();
    else {
      this._stream.abort();
      this._heard = false; // the first notice after that loads the view again
    }
  }

  _hear(name, data) {
    // before the first notice, there may have been changes without one
    const isBack = name === "state" && data.connected && !this._state.connected;
    if (name === "changed" || !this._heard || isBack) this.refresh();
    this._heardMs = Date.now();
    this._heard = true;
    if (name === "state") this._state = { ...data, ms: Date.now() };
    this._check();
  }

  _check() {
    if (document.hidden) return;
    if (Date.now() - Math.max(this._heardMs, this._openedMs) > SILENCE_MS) this._open();
    if (this._heard && Date.now() - this._loadedMs > AGES_MS) this.refresh();
    const silentMs = Date.now() - this._heardMs;
    const { connected, since_s: since, ms } = this._state;
    const stale = (text) => this._tell({ kind: "stale", text: `${text}, reconnecting` });
    if (!connected) stale(`No connection to NATS for ${Math.round(since + (Date.now() - ms) / 1000)}s`);
    else if (silentMs > (this._heard ? STALE_MS : RETRY_MS)) stale(`No update for ${Math.round(silentMs / 1000)}s`);
    else this._tell(this._heard ? { kind: "live", text: "Live" } : { kind: "connecting", text: "Connecting" });
  }
}
