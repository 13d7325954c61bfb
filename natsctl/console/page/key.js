/** Shows one key: what is wrong with it first, then its objects, its text and its past. */

import { button, edit, pause, plan, record, resume, resync, rollback, saveRecording } from "./actions.js";
import { diff, plannedKey } from "./changes.js";
import { age, badge, count, counted, duration, h, link, pathOf, pauseText, replace, shown } from "./dom.js";
import { get, withQuery } from "./server.js";
import { eventEntry, nextEntry, revisionEntry, syncEntry, Timeline } from "./timeline.js";
import { Tree } from "./tree.js";

const LISTED_MAX = 10;

/** A view of the key of a route. */
export class Key {
  constructor(route) {
    const { controller, bucket, key } = route;
    this.title = shown(key, 120);
    this.live = { view: "key", controller, bucket, key };
    this._route = route;
    this._query = route.query;
    this._compared = "";
    this._tree = new Tree(route.controller);
    this._timeline = new Timeline();
    this._wrong = h("section", { class: "wrong", "aria-label": "What is wrong" });
    this._buttons = h("div", { class: "bar-of-tools" });
    this._facts = h("dl", { class: "facts" });
    this._errors = h("ul", { class: "problems", "aria-label": "Missing parts" });
    this._plan = h("div");
    this._diff = h("section", { "aria-label": "Difference", tabindex: -1 });
    this._text = h("pre", { class: "text", tabindex: 0, role: "region", "aria-label": "Object" });
    this._note = h("p", { class: "muted" });
    this._drawn = {};
    this.element = h("div", { class: "key-page" },
      h("p", { class: "crumbs" }, link(pathOf(route), controller ?? bucket)),
      this._wrong, this._buttons, this._errors, this._facts, this._diff,
      h("div", { class: "columns" },
        h("div", {},
          controller !== undefined && h("section", {}, h("h2", {}, "Objects"), this._tree.element),
          this._plan,
          h("section", {}, h("h2", {}, "Object"), this._note, this._text)),
        h("section", {}, h("h2", {}, "Timeline"), this._timeline.element)));
  }

  async load(signal) {
    const { controller, bucket, key } = this._route;
    const answer = await get("/api/key", { controller, bucket, key }, signal);
    const explain = answer.explain ?? [];
    this._once("wrong", [explain, answer.object?.revision], () => this._drawWrong(explain, answer.as_of));
    this._once("buttons", [answer.off, explain.map(({ paused }) => paused)], () => this._drawButtons(answer));
    this._drawFacts(answer);
    this._drawObject(answer.object);
    if (answer.tree) this._tree.update(answer.tree);
    this._tree.element.hidden = !answer.tree;
    this._timeline.update(this._entries(answer));
    await this._compare(signal);
    return answer;
  }

  resync() {
    const { controller, key } = this._route;
    if (controller !== undefined) resync({ controller, keys: [key] });
  }

  /** Show another difference. */
  moved(query) {
    this._query = query;
    this._compare().then(() => this._diff.focus());
  }

  /** Draw a part only if its data changed, so that it keeps the focus and what was opened. */
  _once(part, data, draw) {
    const text = JSON.stringify(data);
    if (this._drawn[part] !== text) draw();
    this._drawn[part] = text;
  }

  _drawWrong(explain, asOf) {
    const open = this._wrong.querySelector("details")?.open;
    const blocks = explain.flatMap((explanation) => this._troubles(explanation, asOf));
    const details = this._wrong.querySelector("details"); // keeps the traceback that was loaded
    replace(this._wrong, ...blocks);
    const slot = this._wrong.querySelector(".traceback");
    if (slot) slot.replaceWith(details ?? this._traceback());
    if (open && details) details.open = true;
    this._wrong.hidden = blocks.length === 0;
  }

  _troubles(explanation, asOf) {
    const { paused, quarantined, invalid, failures, failing_since: since, queued, garbage_held: held } = explanation;
    const failed = (explanation.syncs ?? []).findLast((sync) => sync.error);
    const block = (kind, state, title, text, ...more) => h("div", { class: `trouble ${kind}` },
      h("p", { class: "title" }, badge(state), " ", ...title), text && h("pre", { class: "text" }, shown(text, 4_000)), ...more);
    const blocks = [];
    if (!explanation.exists && !explanation.syncs?.length) blocks.push(block("warn", "Missing", ["The object does not exist."]));
    if (quarantined) blocks.push(block("bad", "quarantined", ["It is not synced: processes died during its syncs."], quarantined));
    if (invalid) blocks.push(block("bad", "invalid", ["Its newest revision is not synced."], invalid));
    if (failures || since) {
      const next = !queued ? "the next try follows a change"
        : queued.place === "waiting" ? ["next try ", age(new Date((asOf + queued.s) * 1000).toISOString())] : `it is ${queued.place} now`;
      const title = [failures ? counted(failures, "failed sync") : "It fails", since && ", first ", since && age(since), since && " ago", "; ", next];
      blocks.push(block("bad", "failing", title.flat().filter(Boolean), failed?.error, h("span", { class: "traceback" })));
    }
    if (paused) blocks.push(block("warn", "paused", pausedParts(paused)));
    if (held) blocks.push(block("warn", "Warning", ["Its objects are not collected."], held));
    return blocks;
  }

  _traceback() {
    const text = h("pre", { class: "text", tabindex: 0, role: "region", "aria-label": "Traceback" }, "…");
    const { controller, key } = this._route;
    const details = h("details", {}, h("summary", {}, "Traceback"), text);
    details.addEventListener("toggle", async () => {
      const answer = await get("/api/traceback", { controller, key }).catch((error) => ({ text: error.message }));
      text.textContent = shown(answer.text || "No traceback was recorded.", 20_000);
    }, { once: true });
    return details;
  }

  _drawButtons({ off, explain, bucket: answered }) {
    const { controller, key } = this._route;
    const bucket = this._route.bucket ?? answered;
    const target = { controller, bucket, keys: [key] };
    const editing = button("Edit", () => edit(target), off.edit);
    const isPaused = (explain ?? []).some(({ paused }) => paused && !paused.controller);
    replace(this._buttons, ...(controller === undefined ? [editing] : [
      button("Resync", () => resync(target), off.resync),
      isPaused ? button("Resume", () => resume(target), off.resume) : button("Pause", () => pause(target), off.pause),
      editing,
      button("Plan", () => plan(target), off.plan),
      button("Record", () => record(target), off.record),
      button("Download recording", () => saveRecording(controller, key), off.recording),
    ]));
  }

  _drawFacts({ explain, object, errors }) {
    const parts = (explain ?? []).flatMap((explanation) => this._factsOf(explanation));
    if (object) parts.push(["Revision", count(object.revision)], ["Size", counted(object.bytes, "byte")]);
    replace(this._facts, ...parts.map(([name, ...values]) =>
      h("div", {}, h("dt", {}, name), h("dd", { class: "text" }, ...values))));
    const texts = Object.entries(errors ?? {}).map(([part, { message }]) => `${part}: ${message}`);
    replace(this._errors, ...texts.map((text) => h("li", { class: "text" }, shown(text))));
    const planned = (explain ?? []).map((explanation) => explanation.planned).filter(Boolean);
    replace(this._plan, ...planned.flatMap((entry) => [h("h2", {}, "Plan of the dry run"), plannedKey(this._route.key, entry)]));
  }

  _factsOf(explanation) {
    const { daemon, member, queued, conditions, external, reads, held, contested, events_error: eventsError } = explanation;
    const name = daemon.pid ? shown(member || `${daemon.host}:${daemon.pid}`, 80) : badge("down");
    const facts = [["Daemon", name]];
    if (daemon.pid) facts.push(["Next sync", queueText(queued)]);
    const lists = { Conditions: conditions, External: external, Reads: reads, Held: held, Contested: contested };
    for (const [label, texts] of Object.entries(lists)) {
      if (texts?.length) facts.push([label, texts.slice(0, LISTED_MAX).map((text) => shown(text, 200)).join("; ")]);
    }
    if (eventsError) facts.push(["Events", shown(eventsError)]);
    return facts;
  }

  _drawObject(object) {
    const text = shown(object ? object.text : "", Infinity);
    if (this._text.textContent !== text) this._text.textContent = text;
    this._text.hidden = !object;
    const cut = object?.omitted ? `${counted(object.omitted, "character")} are left out. ` : "";
    replace(this._note, object ? cut : "The object does not exist, or cannot be read.");
  }

  _entries({ revisions, explain, as_of: asOf, off, bucket: answered }) {
    const { controller, key } = this._route;
    const target = { controller, bucket: this._route.bucket ?? answered, keys: [key] };
    const entries = (revisions ?? []).map((revision, index, known) => {
      const before = known[index - 1];
      const href = before && withQuery(pathOf(this._route, key), { from: before.revision, to: revision.revision });
      const isOld = index < known.length - 1 && !revision.deleted && !off.rollback;
      return revisionEntry(revision, href, isOld && (() => rollback(target, revision.revision)));
    });
    const syncs = (explain ?? []).flatMap((explanation) => explanation.syncs ?? []);
    const longest_s = Math.max(0, ...syncs.map((sync) => sync.duration_s));
    const events = (explain ?? []).flatMap((explanation) => explanation.events ?? []).map(eventEntry);
    const next = (explain ?? []).filter(({ queued }) => queued?.place === "waiting").map(({ queued }) => nextEntry(asOf + queued.s));
    return [...next, ...entries, ...syncs.map((sync) => syncEntry(sync, longest_s)), ...events];
  }

  async _compare(signal) {
    const [from, to] = [this._query.get("from"), this._query.get("to")];
    const compared = `${from} ${to}`;
    if (compared === this._compared) return;
    const { controller, bucket, key } = this._route;
    const isAsked = from !== null && to !== null;
    replace(this._diff, isAsked && (await this._difference({ controller, bucket, key, from, to }, signal)));
    this._compared = compared; // revisions do not change
  }

  async _difference(query, signal) {
    const title = `Revision ${shown(query.from, 20)} to ${shown(query.to, 20)}`;
    const close = h("a", { href: pathOf(this._route, this._route.key), class: "button" }, "Close");
    const heading = h("div", { class: "heading" }, h("h2", {}, title), close);
    try {
      const { differences, more } = await get("/api/diff", query, signal);
      const rest = more ? h("p", {}, `${counted(more, "more field")} differ.`) : null;
      return h("div", {}, heading, diff(differences, title), rest);
    } catch (error) {
      if (signal?.aborted) throw error;
      return h("div", {}, heading, h("p", { class: "bad" }, shown(error.message)));
    }
  }
}

function pausedParts({ reason, since, until, by, controller }) {
  const times = `${since ? `since ${since} ` : ""}${until ? `until ${until} ` : ""}`;
  return pauseText(`${controller ? "the whole controller " : ""}${times}${by ? `by ${by}` : ""}${reason ? `: ${reason}` : ""}`);
}

function queueText(queued) {
  if (!queued) return "after the next change";
  if (queued.place === "waiting") return `in ${duration(queued.s)}`;
  if (queued.place === "held") return `runs for ${duration(queued.s)}`;
  return `ready for ${duration(queued.s)}, priority ${shown(queued.priority, 20)}`;
}
