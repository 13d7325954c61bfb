/** Asks about an action, shows what it would change, requests it, and reports what happened. */

import { ask, field, report, show } from "./dialog.js";
import { counted, duration, h, shown } from "./dom.js";
import { act, get } from "./server.js";

const ASKED_FROM = 20; // keys whose resync is awaited about
const VALUE_MAX = 4_000; // characters of a value

/* A target of actions has a `controller`, a `bucket`, and `keys`, a `filter` with their `count`, or neither: all keys. */

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
      field("Reason", h("input", { name: "reason", maxlength: 500, autofocus: true })),
      field("Time", h("input", { name: "limit", placeholder: "2h", maxlength: 20 })),
    ],
    button: "Pause",
  });
  if (answer) await perform("pause", { ...body(target), reason: answer.reason, for: answer.limit });
}

export async function resume(target) {
  if (!target.keys && !(await ask({ title: `Resume ${subject(target)}?`, button: "Resume" }))) return;
  await perform("resume", body(target));
}

export async function record(target) {
  await perform("record", body(target));
}

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
      content: [field("Object", text)],
      button: "Review",
    });
    if (!written) return;
    const change = { ...body(target), text: written.text, revision: draft.revision };
    isDone = await stored("edit", change, `Store ${shown(key, 80)}?`);
  }
}

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
    content: [field(`Type ${length} to delete ${counted(length, "object")}`, h("input", {
      name: "count", inputmode: "numeric", autocomplete: "off", autofocus: true,
    }))],
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
  const recording = await awaited(get("/api/recording", { controller, key }));
  if (!recording) return;
  const name = `${controller}-${key.replaceAll("/", "-")}.json`;
  const url = URL.createObjectURL(new Blob([recording.text], { type: "application/json" }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
  report(`${name} is saved`);
}

async function perform(action, request) {
  const answer = await awaited(act(action, request));
  if (answer?.message) report(answer.message);
  for (const warning of answer?.warnings ?? []) report(warning, { isError: true });
  return answer;
}

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
function planned(plan) {
  const { create, update, delete: removed, failed } = plan.summary;
  const line = `${create} to create, ${update} to change, ${removed} to delete, ${failed} failed`;
  return h("div", { class: "plan" }, h("p", {}, line),
    ...Object.entries(plan.keys).map(([key, entry]) => plannedKey(key, entry)));
}

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
