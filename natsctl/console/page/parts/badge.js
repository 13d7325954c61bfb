/** Shows a state as a word with a colour. */

import { h } from "../dom.js";
import { shown } from "../format.js";

const KINDS = {
  good: ["True", "syncing", "leader", "ok", "Normal"],
  bad: ["False", "failing", "invalid", "Invalid", "Missing", "blocked", "quarantined", "conflict", "down"],
  warn: ["paused", "stopping", "starting", "listing", "joining", "standby", "dry-run", "no answer", "Warning"],
};

/**
 * Return a badge; null for an unknown state.
 *
 * @param {string | null | undefined} state
 * @param {string} [title] the reason
 */
export function badge(state, title) {
  if (!state || state === "-" || state === "Unknown") return null;
  const kind = Object.keys(KINDS).find((name) => KINDS[name].includes(state)) ?? "plain";
  return h("span", { class: `badge ${kind}`, title: title ? shown(title) : null }, shown(state, 60));
}
