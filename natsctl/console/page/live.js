/**
 * Keeps a view current: receives notices of changes, loads the view again, and reports the state of
 * the connection.
 *
 * Guarantees: a view is loaded at most four times a second, and never twice at the same time. After
 * each interruption it is loaded again. Silence of `SILENCE_MS` opens a new stream of notices.
 */

import { ApiError, events } from "./api.js";

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
    this._stream.abort();
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
    this._stream?.abort();
    this._openedMs = Date.now();
    this._stream = new AbortController();
    this._follow(this._stream.signal);
  }

  async _follow(signal) {
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
    if (document.hidden) {
      this._stream.abort();
      this._heard = false; // the first notice after that loads the view again
    } else {
      this._heardMs = Date.now();
      this._open();
    }
  }

  _hear(name, data) {
    // before the first notice, there may have been changes without one
    if (name === "changed" || !this._heard) this.refresh();
    this._heardMs = Date.now();
    this._heard = true;
    if (name === "state") this._change(data);
    this._check();
  }

  _change(state) {
    const before = this._state.connected;
    this._state = state;
    this._stateMs = Date.now();
    if (this._state.connected && !before) this.refresh();
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
