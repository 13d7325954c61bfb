/** Shows whether a view is loading, partial, refused, or has another error. */

import { h, replace } from "../dom.js";
import { counted, shown } from "../format.js";

const TITLES = {
  refused: "Refused",
  not_found: "Not found",
  timeout: "No answer in time",
  unavailable: "Not available",
  no_daemon: "No daemon",
  invalid: "Invalid",
  conflict: "Conflict",
  old_daemon: "The daemon is too old",
  signed_out: "Signed out",
  failed: "Failed",
  offline: "No connection to the console",
};

/** A line above a view; empty if the view is complete. */
export class Notice {
  constructor() {
    this.element = h("div", { class: "notice", role: "status" });
    this._text = "";
    this._set("Loading…", "loading");
  }

  /**
   * Show the error of a load, or nothing.
   *
   * @param {Error | null} error
   */
  failed(error) {
    if (error) this._set(`${TITLES[error.reason] ?? "Error"}: ${shown(error.message)}`, "bad");
    else if (this._kind !== "partial") this._set("", "");
  }

  /**
   * Show whether all daemons answered.
   *
   * @param {{partial?: {answered: number, expected: number, missing: string[]} | null}} answer
   */
  answered({ partial }) {
    if (!partial) return this._set("", "");
    const { answered, expected, missing } = partial;
    const names = missing.length ? `; no answer from ${missing.map((name) => shown(name, 80)).join(", ")}` : "";
    return this._set(`${answered} of ${counted(expected, "daemon")} answered${names}`, "partial");
  }

  _set(text, kind) {
    this._kind = kind;
    if (text === this._text) return; // a screen reader reads each change
    this._text = text;
    this.element.dataset.kind = kind;
    replace(this.element, text && h("p", {}, text));
  }
}
