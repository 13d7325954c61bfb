/** Reports the result of an action in a live region. */

import { h } from "../dom.js";
import { shown } from "../format.js";

const SHOWN_MS = 10_000;
const REPORTS_MAX = 5;

/**
 * Show a text for a while. An error stays until the user closes it.
 *
 * @param {string} text
 * @param {{isError?: boolean}} options
 */
export function report(text, { isError = false } = {}) {
  const list = document.getElementById("reports");
  const remove = h("button", { type: "button", "aria-label": "Close the report" }, "×");
  const item = h("div", { class: isError ? "report bad" : "report" }, h("p", {}, shown(text)), remove);
  remove.addEventListener("click", () => item.remove());
  list.append(item);
  while (list.children.length > REPORTS_MAX) list.firstElementChild.remove();
  if (!isError) setTimeout(() => item.remove(), SHOWN_MS);
}
