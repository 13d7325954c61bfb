/** Shows the fields that differ between two values. */

import { h } from "../dom.js";
import { json, shown } from "../format.js";

const VALUE_MAX = 4_000;

/**
 * Return a table of differences.
 *
 * @param {{path: string, before: unknown, after: unknown}[]} differences
 * @param {string} label
 */
export function diff(differences, label) {
  if (differences.length === 0) return h("p", { class: "empty" }, "No field differs.");
  const names = ["Field", "Before", "After"];
  const heading = h("tr", {}, ...names.map((name) => h("th", { scope: "col" }, name)));
  const rows = differences.map(({ path, before, after }) => h("tr", {},
    h("th", { scope: "row", class: "text" }, shown(path || "(the whole value)")),
    value(before, "removed"), value(after, "added")));
  const table = h("table", { class: "diff", "aria-label": label }, h("thead", {}, heading), h("tbody", {}, ...rows));
  return h("div", { class: "scroller", role: "region", tabindex: 0, "aria-label": label }, table);
}

function value(content, kind) {
  if (content === null || content === undefined) {
    return h("td", {}, h("span", { class: "muted" }, "none"));
  }
  const text = typeof content === "string" ? shown(content, VALUE_MAX) : json(content, VALUE_MAX);
  return h("td", {}, h(kind === "added" ? "ins" : "del", { class: "text" }, text));
}
