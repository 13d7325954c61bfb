/** Reports the result of an action in a live region. */

import { h } from "../dom.js";
import { shown } from "../format.js";

const REPORTS_MAX = 5;

/**
 * Show a text until the user closes it, or opens another page.
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
}

/** Remove all reports but errors. */
export function clearReports() {
  for (const item of document.querySelectorAll("#reports > :not(.bad)")) item.remove();
}
