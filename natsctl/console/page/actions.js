/** Asks about an action, requests it, and reports what happened. */

import { act, download } from "./api.js";
import { h } from "./dom.js";
import { counted, shown } from "./format.js";
import { ask, field, show } from "./parts/dialog.js";
import { planned } from "./parts/plan.js";
import { report } from "./parts/reports.js";

const ASKED_FROM = 20; // keys whose resync is asked about

/**
 * Enqueue keys. No keys means all keys of the controller.
 *
 * @param {string} controller
 * @param {string[]} keys
 */
export async function resync(controller, keys) {
  const title = `Resync ${subjectOf(controller, keys)}?`;
  const isAsked = keys.length === 0 || keys.length >= ASKED_FROM;
  if (isAsked && !(await ask({ title, button: "Resync" }))) return;
  await perform("resync", { controller, keys });
}

/**
 * Pause keys, with a reason and a time that the user gives. No keys means the whole controller.
 *
 * @param {string} controller
 * @param {string[]} keys
 */
export async function pause(controller, keys) {
  const reason = field("Reason", { name: "reason", maxlength: 1000, autofocus: true });
  const limit = field("Time", { name: "limit", placeholder: "2h", maxlength: 20 });
  const answer = await ask({
    title: `Pause ${subjectOf(controller, keys)}?`,
    text: "A paused key is neither synced nor garbage collected until it is resumed. " +
      "Without a time such as 30m or 2h, the pause lasts until somebody resumes it.",
    fields: [reason, limit],
    button: "Pause",
  });
  if (!answer) return;
  const time = answer.limit ? { for: answer.limit } : {};
  const everything = keys.length === 0;
  await perform("pause", { controller, keys, everything, reason: answer.reason, ...time });
}

/**
 * Resume keys. No keys means the whole controller.
 *
 * @param {string} controller
 * @param {string[]} keys
 */
export async function resume(controller, keys) {
  const everything = keys.length === 0;
  const title = `Resume ${subjectOf(controller, keys)}?`;
  if (everything && !(await ask({ title, button: "Resume" }))) return;
  await perform("resume", { controller, keys, everything });
}

/**
 * Record every sync of a key from now on.
 *
 * @param {string} controller
 * @param {string} key
 */
export async function record(controller, key) {
  await perform("record", { controller, keys: [key], stop: false });
}

/**
 * Show what the next sync of a key would do.
 *
 * @param {string} controller
 * @param {string} key
 */
export async function plan(controller, key) {
  const answer = await perform("plan", { controller, keys: [key] });
  if (answer) await show({ title: `Plan for ${shown(key)}`, content: planned(answer.result) });
}

/**
 * Delete orphans after the user has typed their number.
 *
 * @param {object} garbage the answer that the user sees
 * @param {object[]} orphans the selected ones
 * @returns {Promise<boolean>} whether the request succeeded
 */
export async function collect(garbage, orphans) {
  const typed = field(`Type ${orphans.length} to delete ${counted(orphans.length, "object")}`, {
    name: "count", inputmode: "numeric", autocomplete: "off", autofocus: true,
  });
  const answer = await ask({
    title: `Delete ${counted(orphans.length, "object")}?`,
    text: garbage.refused ? `Garbage collection is held: ${shown(garbage.refused)}` : "",
    fields: [typed],
    button: "Delete",
    isDestructive: true,
    isReady: (values) => values.count.trim() === String(orphans.length),
  });
  if (!answer) return false;
  const objects = orphans.map(({ kind, key, revision }) => ({ kind, key, revision }));
  const { controller } = garbage;
  return (await perform("garbage", { controller, objects, count: Number(answer.count) })) !== null;
}

/**
 * Save the recording of a key's last recorded sync.
 *
 * @param {string} controller
 * @param {string} key
 */
export async function saveRecording(controller, key) {
  try {
    const { content, name } = await download("/api/recording", { controller, key });
    const url = URL.createObjectURL(content);
    h("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
    report(`${name} is saved`);
  } catch (error) {
    report(error.message, { isError: true });
  }
}

async function perform(action, body) {
  try {
    const answer = await act(action, body);
    if (answer.message) report(answer.message);
    for (const warning of answer.warnings ?? []) report(warning, { isError: true });
    return answer;
  } catch (error) {
    report(error.message, { isError: true });
    return null;
  }
}

function subjectOf(controller, keys) {
  if (keys.length === 0) return `all keys of ${shown(controller, 80)}`;
  return keys.length === 1 ? shown(keys[0], 80) : counted(keys.length, "key");
}
