/**
 * Keeps a view current: receives notices of changes, loads the view again, and reports the state of
 * the connection.
 *
 * Guarantees: a view is loaded at most four times a second, and never twice at the same time. After
 * each interruption it is loaded again. Silence of `SILENCE_MS` opens a new stream of notices.
 */

import { address, ApiError } from "./api.js";

const INTERVAL_MS = 250;
const TICK_MS = 1_000;
const STALE_MS = 10_000;
const SILENCE_MS = 20_000;
const RETRY_MS = 2_000;
const AGES_MS = 10_000; // after which a view with ages is loaded again without a change
const AGING = ["home", "keys", "key", "members"];
const RETRIED = ["timeout", "unavailable", "no_daemon", "offline"];

/** @typedef {{kind: "live" | "stale" | "connecting", text: string}} LiveState */

export class Live {
  /**
   * @param {Record<string, string | undefined>} query the view, as the server names it
   * @param {(signal: AbortSignal) => Promise<void>} load loads and draws the view
   * @param {(error: Error | null) => void} failed gets the error of the last load; null if it has
   *   none
   * @param {(state: LiveState) => void} report gets the state of the connection
   */
  constructor(query, load, failed, report) {
    this._query = query;
    this._load = load;
    this._failed = failed;
    this._report = report;
    this._abort = new AbortController();
    this._loading = false;
    this._loadedMs = 0;
    this._pending = false;
    this._nextMs = 0;
    this._heardMs = Date.now();
    this._state = { connected: true, since_s: 0, error: "" };
    this._stateMs = Date.now();
    this._heard = false;
    this._tick = setInterval(() => this._check(), TICK_MS);
    this._show = () => this._showed();
    document.addEventListener("visibilitychange", this._show);
    this._open();
    this.refresh();
  }

  /** Load the view soon. */
  refresh() {
    if (this._pending || this._abort.signal.aborted) return;
    this._pending = true;
    setTimeout(() => this._start(), Math.max(0, this._nextMs - Date.now()));
  }

  /** End the stream and the requests of this view. */
  close() {
    this._abort.abort();
    clearInterval(this._tick);
    document.removeEventListener("visibilitychange", this._show);
    this._stream?.close();
  }

  async _start() {
    if (this._loading) return; // `_pending` stays set, so the end of this load starts the next
    this._pending = false;
    this._loading = true;
    this._loadedMs = Date.now();
    this._nextMs = Date.now() + INTERVAL_MS;
    const error = await this._load(this._abort.signal).then(() => null, (reason) => reason);
    this._loading = false;
    if (this._abort.signal.aborted) return;
    this._failed(error);
    if (this._pending) setTimeout(() => this._start(), Math.max(0, this._nextMs - Date.now()));
    else if (error) this._retry(error);
  }

  _retry(error) {
    if (error instanceof ApiError && RETRIED.includes(error.reason)) {
      this._nextMs = Date.now() + RETRY_MS;
      this.refresh();
    }
  }

  _open() {
    this._stream?.close();
    this._openedMs = Date.now();
    const stream = new EventSource(address("/api/live", this._query));
    this._stream = stream;
    stream.addEventListener("changed", () => this._hear(() => this.refresh()));
    stream.addEventListener("ping", () => this._hear(() => {}));
    stream.addEventListener("state", (event) => this._hear(() => this._change(event.data)));
    stream.addEventListener("error", () => this._lost(stream));
  }

  /** A hidden page has no stream: browsers limit the connections to a server. */
  _showed() {
    if (document.hidden) {
      this._stream.close();
      this._heard = false; // the first notice after that loads the view again
    } else {
      this._heardMs = Date.now();
      this._open();
    }
  }

  _hear(then) {
    if (!this._heard) this.refresh(); // there may have been changes without a notice
    this._heardMs = Date.now();
    this._heard = true;
    then();
    this._check();
  }

  _change(data) {
    const before = this._state.connected;
    this._state = JSON.parse(data);
    this._stateMs = Date.now();
    if (this._state.connected && !before) this.refresh();
  }

  _lost(stream) {
    this._heard = false;
    if (stream.readyState === EventSource.CLOSED) setTimeout(() => this._reopen(stream), RETRY_MS);
    this._check();
  }

  _reopen(stream) {
    if (stream === this._stream && !this._abort.signal.aborted) this._open();
  }

  _check() {
    if (document.hidden) return;
    if (Date.now() - Math.max(this._heardMs, this._openedMs) > SILENCE_MS) this._open();
    const isAging = this._heard && AGING.includes(this._query.view);
    if (isAging && Date.now() - this._loadedMs > AGES_MS) this.refresh();
    this._report(this._present(Date.now() - this._heardMs));
  }

  _present(silentMs) {
    if (!this._state.connected) {
      const seconds = Math.round(this._state.since_s + (Date.now() - this._stateMs) / 1000);
      return { kind: "stale", text: `No connection to NATS for ${seconds} s, reconnecting` };
    }
    if (silentMs > (this._heard ? STALE_MS : RETRY_MS)) {
      return { kind: "stale", text: `No update for ${Math.round(silentMs / 1000)} s, reconnecting` };
    }
    return this._heard ? { kind: "live", text: "Live" } : { kind: "connecting", text: "Connecting" };
  }
}
