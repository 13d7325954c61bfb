/** Shows dialogs and reports: what the user answers, what a page can't show, what an action did. */

import { age, counted, h, replace, shown } from "./dom.js";

const REPORTS_MAX = 5;
/** Return a label with its control; for `ask`, the name of the control names the answer. */
export function field(label, control) {
  return h("label", {}, h("span", {}, label), control);
}

/** Ask a question; `isReady` tells whether the values of the fields in `content` allow the `button`. */
export function ask({ title, text = "", content = [], button, isDestructive, isReady = () => true }) {
  const agree = h("button", { type: "submit", class: isDestructive ? "danger" : "primary" }, button);
  const form = h("form", {}, text && h("p", {}, text), ...content);
  const values = () => Object.fromEntries(new FormData(form));
  const update = () => { agree.disabled = !isReady(values()); };
  form.addEventListener("input", update);
  return opened(title, form, agree, (close) => {
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (!agree.disabled) close(values());
    });
    update();
  });
}

export function show({ title, content }) {
  return opened(title, h("form", {}, content), null, () => {});
}

function opened(title, form, agree, prepare) {
  const focused = document.activeElement;
  const dialog = h("dialog", { "aria-labelledby": "dialog-title" }, h("h2", { id: "dialog-title" }, title), form);
  return new Promise((resolve) => {
    const close = (value) => {
      resolve(value);
      dialog.close();
    };
    const cancel = h("button", { type: "button", onclick: () => close(null) }, agree ? "Cancel" : "Close");
    form.append(h("p", { class: "buttons" }, cancel, agree));
    prepare(close);
    dialog.addEventListener("close", () => {
      resolve(null); // Esc; a value that was given before stays
      dialog.remove();
      if (focused instanceof HTMLElement && focused.isConnected) focused.focus();
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** The lines above a view, which is dimmed while its values are old: what is missing, and their age. */
export class Notice {
  constructor(view) {
    this._view = view;
    this._text = "";
    this._asOf = 0;
    this._why = { failed: false, cut: false };
    this.element = h("div", { class: "notice", role: "status" });
    this.lastKnown = h("p", { class: "last-known", hidden: true });
    this._set("Loading…", "loading");
  }

  failed(error) {
    const title = (error?.reason ?? "error").replace("_", " ");
    if (error) this._set(`${title.charAt(0).toUpperCase()}${title.slice(1)}: ${shown(error.message)}`, "bad");
    else if (this._kind !== "partial") this._set("", "");
    this.update({ failed: error !== null });
  }

  answered({ as_of: asOf, partial }) {
    this._asOf = asOf;
    this.update({ failed: false });
    if (!partial) return this._set("", "");
    const { answered, expected, missing } = partial;
    const names = missing.length ? `; no answer from ${missing.map((name) => shown(name, 80)).join(", ")}` : "";
    return this._set(`${answered} of ${counted(expected, "daemon")} answered${names}`, "partial");
  }

  /** Show whether the last load `failed`, or the connection is `cut`. */
  update(why) {
    this._why = { ...this._why, ...why };
    const isOld = this._asOf > 0 && (this._why.failed || this._why.cut);
    this._view.classList.toggle("old", isOld);
    this.lastKnown.hidden = !isOld;
    const time = new Date(this._asOf * 1000).toISOString();
    if (isOld && this._time !== time) replace(this.lastKnown, "The last known values, from ", age(time), " ago");
    this._time = isOld ? time : "";
  }

  _set(text, kind) {
    this._kind = kind;
    if (text === this._text) return; // a screen reader reads each change
    this._text = text;
    this.element.dataset.kind = kind;
    replace(this.element, text && h("p", {}, text));
  }
}

/** Show the result of an action until the user closes it, or opens another page. */
export function report(text, { isError = false } = {}) {
  const list = document.getElementById("reports");
  const close = h("button", { type: "button", "aria-label": "Close the report", onclick: () => item.remove() }, "×");
  const item = h("div", { class: isError ? "report bad" : "report" }, h("p", {}, shown(text)), close);
  list.append(item);
  while (list.children.length > REPORTS_MAX) list.firstElementChild.remove();
}

export function clearReports() {
  for (const item of document.querySelectorAll("#reports > :not(.bad)")) item.remove();
}
