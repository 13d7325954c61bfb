/** Shows the fields that differ between two values, and what a plan would change. */

import { counted, duration, h, shown } from "./dom.js";

const VALUE_MAX = 4_000;

/** Return a table of differences. */
export function diff(differences, label) {
  if (differences.length === 0) return h("p", { class: "empty" }, "No field differs.");
  const heading = h("tr", {}, ...["Field", "Before", "After"].map((name) => h("th", { scope: "col" }, name)));
  const cell = (content, tag) => {
    if (content === null || content === undefined) return h("td", {}, h("span", { class: "muted" }, "none"));
    const text = typeof content === "string" ? content : JSON.stringify(content, null, 1);
    return h("td", {}, h(tag, { class: "text" }, shown(text, VALUE_MAX)));
  };
  const rows = differences.map(({ path: name, before, after }) => h("tr", {},
    h("th", { scope: "row", class: "text" }, shown(name || "(the whole value)")), cell(before, "del"), cell(after, "ins")));
  const table = h("table", { class: "diff", "aria-label": label }, h("thead", {}, heading), h("tbody", {}, ...rows));
  return h("div", { class: "scroller", role: "region", tabindex: 0, "aria-label": label }, table);
}

/** Return the content of a plan, as `natsctl plan -o json` prints it. */
export function planned(plan) {
  const { create, update, delete: removed, failed } = plan.summary;
  const line = `${create} to create, ${update} to change, ${removed} to delete, ${failed} failed`;
  return h("div", { class: "plan" }, h("p", {}, line),
    ...Object.entries(plan.keys).map(([key, entry]) => plannedKey(key, entry)));
}

/** Return the plan of one key. */
export function plannedKey(key, { error, held_back: heldBack, after_s: after, actions }) {
  const nothing = !error && !heldBack && actions.length === 0;
  return h("section", { "aria-label": shown(key, 80) },
    h("h3", { class: "text" }, shown(key)),
    error && h("p", { class: "bad text" }, `The sync fails: ${shown(error)}`),
    heldBack && h("p", { class: "text" }, `The key is not synced: ${shown(heldBack)}`),
    nothing && h("p", { class: "empty" }, "The sync changes nothing."),
    ...actions.map((action) => h("div", {},
      h("h4", { class: "text" }, `${action.action} ${shown(`${action.kind}/${action.key}`)}`),
      action.reason && h("p", { class: "text" }, shown(action.reason)),
      action.diff.length > 0 && diff(action.diff, counted(action.diff.length, "field")))),
    after !== null && h("p", {}, `The handler requests a sync after ${duration(after)}.`));
}
