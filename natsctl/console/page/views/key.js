/** Shows one key: its objects, its object's text, and its revisions, syncs and events. */

import { pause, plan, record, resume, resync, saveRecording } from "../actions.js";
import { get } from "../api.js";
import { h, replace } from "../dom.js";
import { count, counted, duration, shown } from "../format.js";
import { badge } from "../parts/badge.js";
import { diff } from "../parts/diff.js";
import { plannedKey } from "../parts/plan.js";
import { eventEntry, nextEntry, revisionEntry, syncEntry, Timeline } from "../parts/timeline.js";
import { Tree } from "../parts/tree.js";
import { keyPath, listPath, paths } from "../router.js";

/**
 * @param {import("../router.js").Route} route
 * @returns {import("../app.js").View}
 */
export function keyView(route) {
  const view = new Key(route);
  const { controller, bucket, key } = route;
  return {
    title: shown(key, 120),
    element: view.element,
    live: { view: "key", controller, bucket, key },
    load: (signal) => view.load(signal),
    resync: () => controller !== undefined && resync(controller, [key]),
    moved: (query) => view.moved(query),
  };
}

class Key {
  constructor(route) {
    this._route = route;
    this._query = route.query;
    this._compared = "";
    this._tree = new Tree((branch) => (branch.bucket ? paths.object(branch.bucket, branch.key) : null));
    this._timeline = new Timeline();
    this._state = h("dl", { class: "facts" });
    this._errors = h("ul", { class: "problems", "aria-label": "Missing parts" });
    this._plan = h("div");
    this._diff = h("section", { "aria-label": "Difference", tabindex: -1 });
    this._text = h("pre", { class: "text", tabindex: 0, "aria-label": "Object" });
    this._note = h("p", { class: "muted" });
    const hasTree = route.controller !== undefined;
    this.element = h("div", { class: "key-page" },
      h("p", { class: "crumbs" }, h("a", { href: listPath(route), class: "text" }, shown(route.controller ?? route.bucket, 80))),
      h("div", { class: "bar-of-tools" }, ...this._buttons()),
      this._errors, this._state, this._diff,
      h("div", { class: "columns" },
        h("div", {},
          hasTree && h("section", {}, h("h2", {}, "Objects"), this._tree.element),
          this._plan,
          h("section", {}, h("h2", {}, "Object"), this._note, this._text)),
        h("section", {}, h("h2", {}, "Timeline"), this._timeline.element)));
  }

  async load(signal) {
    const { controller, bucket, key } = this._route;
    const answer = await get("/api/key", { controller, bucket, key }, signal);
    this._drawState(answer);
    this._drawObject(answer.object);
    if (answer.tree) this._tree.update(answer.tree);
    this._tree.element.hidden = !answer.tree;
    this._timeline.update(this._entries(answer));
    await this._compare(signal);
    return answer;
  }

  /** Show another difference. */
  moved(query) {
    this._query = query;
    this._compare().then(() => this._diff.focus());
  }

  _drawState({ explain, object, errors }) {
    const parts = (explain ?? []).flatMap((explanation) => this._facts(explanation));
    if (object) parts.push(["Revision", count(object.revision)], ["Size", counted(object.bytes, "byte")]);
    replace(this._state, ...parts.map(([name, ...values]) =>
      h("div", {}, h("dt", {}, name), h("dd", { class: "text" }, ...values))));
    const texts = Object.entries(errors ?? {}).map(([part, { message }]) => `${part}: ${message}`);
    replace(this._errors, ...texts.map((text) => h("li", { class: "text" }, shown(text))));
    const planned = (explain ?? []).map((explanation) => explanation.planned).filter(Boolean);
    const key = this._route.key;
    replace(this._plan, ...planned.flatMap((entry) => [h("h2", {}, "Plan of the dry run"), plannedKey(key, entry)]));
  }

  _facts(explanation) {
    const { paused, quarantined, invalid, queued, failures, held, reads, contested } = explanation;
    const daemon = explanation.daemon.pid ? shown(explanation.member || nameOf(explanation.daemon), 80) : badge("down");
    const facts = [["Daemon", daemon]];
    if (!explanation.exists) facts.push(["Object", badge("Missing")]);
    if (invalid) facts.push(["Invalid", badge("invalid"), " ", shown(invalid)]);
    if (paused) facts.push(["Paused", badge("paused"), " ", pauseText(paused)]);
    if (quarantined) facts.push(["Quarantined", badge("quarantined"), " ", shown(quarantined)]);
    if (explanation.failing_since) facts.push(["Fails since", h("span", { class: "bad" }, shown(explanation.failing_since))]);
    if (failures) facts.push(["Failures", h("span", { class: "bad" }, counted(failures, "failed sync"))]);
    if (explanation.daemon.pid) facts.push(["Next sync", queueText(queued)]);
    if (reads?.length) facts.push(["Reads", reads.slice(0, 10).map((text) => shown(text, 80)).join(", ")]);
    if (held?.length) facts.push(["Held", held.slice(0, 10).map((text) => shown(text, 200)).join("; ")]);
    if (contested?.length) facts.push(["Contested", contested.slice(0, 10).map((text) => shown(text, 200)).join("; ")]);
    if (explanation.garbage_held) facts.push(["Garbage held", shown(explanation.garbage_held)]);
    if (explanation.events_error) facts.push(["Events", shown(explanation.events_error)]);
    return facts;
  }

  _drawObject(object) {
    const text = object ? object.text : "";
    if (this._text.textContent !== shown(text, Infinity)) this._text.textContent = shown(text, Infinity);
    this._text.hidden = !object;
    const cut = object?.omitted ? `${counted(object.omitted, "character")} are left out. ` : "";
    this._note.textContent = object ? cut : "The object does not exist, or cannot be read.";
    this._note.hidden = this._note.textContent === "";
  }

  _entries({ revisions, explain, as_of }) {
    const known = revisions ?? [];
    const entries = known.map((revision, index) => {
      const before = known[index - 1];
      const range = new URLSearchParams({ from: String(before?.revision), to: String(revision.revision) });
      return revisionEntry(revision, before ? `${keyPath(this._route, this._route.key)}?${range}` : null);
    });
    const syncs = (explain ?? []).flatMap((explanation) => explanation.syncs ?? []);
    const longest_s = Math.max(0, ...syncs.map((sync) => sync.duration_s));
    const events = (explain ?? []).flatMap((explanation) => explanation.events ?? []);
    const unique = new Map(events.map(eventEntry).map((entry) => [entry.id, entry]));
    const next = (explain ?? []).filter(({ queued }) => queued?.place === "waiting")
      .map(({ queued }) => nextEntry(as_of + queued.s));
    return [...next, ...entries, ...syncs.map((sync) => syncEntry(sync, longest_s)), ...unique.values()];
  }

  async _compare(signal) {
    const [from, to] = [this._query.get("from"), this._query.get("to")];
    const compared = `${from} ${to}`;
    if (compared === this._compared) return;
    if (from === null || to === null) {
      replace(this._diff);
    } else {
      const { controller, bucket, key } = this._route;
      replace(this._diff, await this._difference({ controller, bucket, key, from, to }, signal));
    }
    this._compared = compared; // revisions do not change
  }

  async _difference(query, signal) {
    const title = `Revision ${shown(query.from, 20)} to ${shown(query.to, 20)}`;
    const close = h("a", { href: keyPath(this._route, this._route.key), class: "button" }, "Close");
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

  _buttons() {
    const { controller, key } = this._route;
    if (controller === undefined) return [];
    const button = (label, onclick) => h("button", { type: "button", onclick }, label);
    return [
      button("Resync", () => resync(controller, [key])),
      button("Pause", () => pause(controller, [key])),
      button("Resume", () => resume(controller, [key])),
      button("Plan", () => plan(controller, key)),
      button("Record", () => record(controller, key)),
      button("Download recording", () => saveRecording(controller, key)),
    ];
  }
}

function nameOf({ host, pid }) {
  return `${host}/${pid}`;
}

function pauseText({ reason, since, until, by, controller }) {
  const parts = [controller && "the whole controller", since && `since ${since}`, until && `until ${until}`, by && `by ${by}`, reason];
  return shown(parts.filter(Boolean).join(", "));
}

function queueText(queued) {
  if (!queued) return "after the next change";
  if (queued.place === "waiting") return `in ${duration(queued.s)}`;
  if (queued.place === "held") return `runs for ${duration(queued.s)}`;
  return `ready for ${duration(queued.s)}, priority ${shown(queued.priority, 20)}`;
}
