/** Shows a plan as `natsctl plan -o json` prints it. */

import { h } from "../dom.js";
import { counted, duration, shown } from "../format.js";
import { diff } from "./diff.js";

/**
 * Return the content of a plan.
 *
 * @param {any} plan
 */
export function planned(plan) {
  const { create, update, delete: removed, failed } = plan.summary;
  const line = `${create} to create, ${update} to change, ${removed} to delete, ${failed} failed`;
  const keys = Object.entries(plan.keys).map(([key, entry]) => plannedKey(key, entry));
  return h("div", { class: "plan" }, h("p", {}, line), ...keys);
}

/**
 * Return the plan of one key.
 *
 * @param {string} key
 * @param {any} entry
 */
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
      action.diff.length > 0 && diff(action.diff, `${counted(action.diff.length, "field")}`))),
    after !== null && h("p", {}, `The handler requests a sync after ${duration(after)}.`));
}
