/** Asks about an action, requests it, and reports what happened. */

import { diff, planned } from "./changes.js";
import { ask, field, report, show } from "./dialog.js";
import { counted, h, shown } from "./dom.js";
import { act, download, get } from "./server.js";

const ASKED_FROM = 20; // keys whose resync is awaited about

/**
 * What an action is about: keys of a controller, those of a filter, or, with neither, all of them.
 * @typedef {{controller?: string, bucket?: string, keys?: string[], count?: number, filter?:
 *   {state: string, cause: string, prefix: string}}} Target
 */

/** Return a button of an action. If it is *off*, which is the reason, it says so when somebody tries it. */
export function button(label, onclick, off) {
  if (!off) return h("button", { type: "button", onclick }, label);
  const why = `${label} is off: ${shown(off)}`;
  return h("button", {
    type: "button", "aria-disabled": "true", title: why, onclick: () => report(why, { isError: true }),
  }, label);
}

export async function resync(target) {
  const isAsked = !target.keys || target.keys.length >= ASKED_FROM;
  if (isAsked && !(await ask({ title: `Resync ${subject(target)}?`, button: "Resync" }))) return;
  await perform("resync", body(target));
}

export async function pause(target) {
  const answer = await ask({
    title: `Pause ${subject(target)}?`,
    text: "A paused key is neither synced nor garbage collected until it is resumed. " +
      "Without a time such as 30m or 2h, the pause lasts until somebody resumes it.",
    content: [
      field("Reason", { name: "reason", maxlength: 500, autofocus: true }),
      field("Time", { name: "limit", placeholder: "2h", maxlength: 20 }),
    ],
    button: "Pause",
  });
  if (answer) await perform("pause", { ...body(target), reason: answer.reason, for: answer.limit });
}

export async function resume(target) {
  if (!target.keys && !(await ask({ title: `Resume ${subject(target)}?`, button: "Resume" }))) return;
  await perform("resume", body(target));
}

/** Record every sync of a key from now on. */
export async function record(target) {
  await perform("record", body(target));
}

/** Show what the next sync of a key would do. */
export async function plan(target) {
  const answer = await perform("plan", body(target));
  if (answer) await show({ title: `Plan for ${subject(target)}`, content: planned(answer.result) });
}

/** Edit an object until it is stored or the user gives up: first its text, then what changes. */
export async function edit(target) {
  const { bucket, keys: [key] } = target;
  const draft = await awaited(get("/api/draft", { bucket, key }));
  if (!draft) return;
  const text = h("textarea", { name: "text", rows: 20, cols: 80, spellcheck: "false" });
  text.value = draft.text;
  for (let isDone = false; !isDone;) {
    const written = await ask({
      title: `Edit ${shown(key, 80)}`,
      text: `Revision ${draft.revision}, without status and bookkeeping. A secret stays as *** hides it.`,
      content: [h("label", {}, h("span", {}, "Object"), text)],
      button: "Review",
    });
    if (!written) return;
    const change = { ...body(target), text: written.text, revision: draft.revision };
    isDone = await stored("edit", change, `Store ${shown(key, 80)}?`);
  }
}

/** Restore an earlier revision of an object, after the user has seen what changes. */
export async function rollback(target, revision) {
  await stored("rollback", { ...body(target), revision }, `Restore revision ${revision}?`);
}

/** Show what a change would change, and store it if the user agrees; return whether that is done. */
async function stored(action, change, title) {
  const preview = await perform(action, change);
  if (!preview) return false;
  const { differences, faults } = preview.result;
  const list = faults.length > 0 && h("ul", { class: "problems", "aria-label": "Faults" },
    ...faults.map((fault) => h("li", { class: "text" }, shown(fault))));
  const agrees = await ask({
    title,
    text: list ? "It does not match the schema that the controller has published:" : "",
    content: [list, diff(differences, "Changes")],
    button: "Store",
    isReady: () => !list,
  });
  return agrees !== null && (await perform(action, { ...change, sure: true })) !== null;
}

/** Delete the selected orphans of the answer that the user sees, after their number was typed. */
export async function collect({ controller, refused }, orphans) {
  const { length } = orphans;
  const answer = await ask({
    title: `Delete ${counted(length, "object")}?`,
    text: refused ? `Garbage collection is held: ${shown(refused)}` : "",
    content: [field(`Type ${length} to delete ${counted(length, "object")}`, {
      name: "count", inputmode: "numeric", autocomplete: "off", autofocus: true,
    })],
    button: "Delete",
    isDestructive: true,
    isReady: (values) => values.count.trim() === String(length),
  });
  if (!answer) return false;
  const objects = orphans.map(({ kind, key, revision }) => ({ kind, key, revision }));
  return (await perform("garbage", { controller, objects, count: Number(answer.count) })) !== null;
}

/** Save the recording of a key's last recorded sync. */
export async function saveRecording(controller, key) {
  const saved = await awaited(download("/api/recording", { controller, key }));
  if (!saved) return;
  const url = URL.createObjectURL(saved.content);
  h("a", { href: url, download: saved.name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
  report(`${saved.name} is saved`);
}

async function perform(action, request) {
  const answer = await awaited(act(action, request));
  if (answer?.message) report(answer.message);
  for (const warning of answer?.warnings ?? []) report(warning, { isError: true });
  return answer;
}

/** Return an answer; reports the error of a request, and returns null then. */
async function awaited(answer) {
  try {
    return await answer;
  } catch (error) {
    report(error.message, { isError: true });
    return null;
  }
}

function body({ controller = "", bucket = "", keys, filter }) {
  return { controller, bucket, keys: keys ?? [], filter: filter ?? null, everything: !keys && !filter };
}

function subject({ controller, keys, filter, count: number }) {
  if (filter) return `${counted(number, `${filter.state} key`)} of ${shown(controller, 80)}`;
  if (!keys) return `all keys of ${shown(controller, 80)}`;
  return keys.length === 1 ? shown(keys[0], 80) : counted(keys.length, "key");
}
