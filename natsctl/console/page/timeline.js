/** Shows the revisions, syncs and events of a key in one list, the newest first. */

import { age, arrange, counted, duration, h, replace, shown } from "./dom.js";

const ENTRIES_MAX = 300;

/** A list of entries, which are updated in place: two with one `id` are the same, `text` tells a change. */
export class Timeline {
  constructor() {
    this._items = new Map();
    this._list = h("ol", { class: "timeline", "aria-label": "Timeline" });
    this._empty = h("p", { class: "empty", hidden: true }, "No revision, sync or event is known.");
    this.element = h("div", {}, this._list, this._empty);
  }

  /** Show these entries in the order of their times. */
  update(entries) {
    const newest = entries.toSorted((a, b) => Date.parse(b.time) - Date.parse(a.time)).slice(0, ENTRIES_MAX);
    const items = new Map();
    for (const { id, kind, text, draw } of newest) {
      const item = this._items.get(id) ?? { element: h("li", { class: kind }), text: "" };
      if (item.text !== text) replace(item.element, ...draw());
      items.set(id, { element: item.element, text });
    }
    this._items = items;
    arrange(this._list, [...items.values()].map((item) => item.element));
    this._empty.hidden = newest.length > 0;
  }
}

/** Return the entry of a revision, with a link to its difference, and a button if it can be restored. */
export function revisionEntry(revision, href, restore) {
  const { revision: number, created, deleted, bytes, changed = [] } = revision;
  const title = deleted ? `Revision ${number}: deleted` : `Revision ${number}`;
  return entry(`revision ${number}`, created, `revision ${deleted ? "gone" : ""}`, [revision, Boolean(restore)], () => [
    h("span", { class: "what" }, href ? h("a", { href }, title) : title), age(created),
    h("p", { class: "text" }, deleted ? "" : counted(bytes, "byte"),
      changed.length ? `, changed ${changed.map((name) => shown(name, 80)).join(", ")}` : ""),
    restore && h("button", { type: "button", class: "small", "aria-label": `Restore revision ${number}`, onclick: restore }, "Restore"),
  ]);
}

/** Return the entry of a sync, with a bar of its duration among those of all syncs. */
export function syncEntry(sync, longest_s) {
  const { operation, started, duration_s, error, created, updated, deleted } = sync;
  const counts = [[created, "created"], [updated, "changed"], [deleted, "deleted"]]
    .filter(([number]) => number).map(([number, verb]) => `${number} ${verb}`);
  return entry(`sync ${started}`, started, `sync ${error ? "failed" : "done"}`, [sync, longest_s], () => {
    const bar = h("span", { class: "bar", "aria-hidden": "true" });
    bar.style.setProperty("width", `${(4 + 96 * Math.sqrt(duration_s / Math.max(longest_s, 1e-9))).toFixed(1)}%`);
    return [
      h("span", { class: "what text" }, `→ ${shown(operation, 80)}`), age(started),
      h("p", {}, `${error ? "Sync failed" : "Sync"} in ${duration(duration_s)}`, counts.length ? `: ${counts.join(", ")}` : ""),
      h("span", { class: "track" }, bar),
      error && h("p", { class: "bad text" }, shown(error, 2_000)),
    ];
  });
}

export function eventEntry(event) {
  const id = `event ${event.reason} ${event.first} ${event.message}`;
  return entry(id, event.last, `event ${event.type === "Warning" ? "warning" : ""}`, event, () => [
    h("span", { class: "what text" }, shown(event.reason, 80)), age(event.last),
    h("p", { class: "text" }, shown(event.message, 2_000), event.count > 1 ? ` (${event.count} times)` : ""),
  ]);
}

/** Return the entry of the next sync, at a time in seconds since 1970. */
export function nextEntry(time) {
  const text = new Date(Math.round(time) * 1000).toISOString();
  return entry("next", text, "next", text, () => [h("span", { class: "what" }, "Next sync"), age(text)]);
}

function entry(id, time, kind, data, draw) {
  return { id, time, kind, text: JSON.stringify(data), draw };
}
