/** Shows one key: what is wrong with it first, then the tree of its objects, its text and its past. */

import { button, diff, edit, pause, plan, plannedKey, record, resume, resync, rollback, saveRecording } from "./actions.js";
import { age, arrange, badge, count, counted, duration, h, link, once, pathOf, pauseText, replace, setText, shown } from "./dom.js";
import { get, withQuery } from "./server.js";

const LISTED_MAX = 10;
const ENTRIES_MAX = 300;
const READY = { True: "ready", False: "not ready" };

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
    once(this._wrong, [explain, answer.object?.revision], () => this._drawWrong(explain, answer.as_of));
    once(this._buttons, [answer.off, explain.map(({ paused }) => paused)], () => this._drawButtons(answer));
    this._drawFacts(answer);
    this._drawObject(answer.object);
    if (answer.tree) this._tree.update(answer.tree);
    this._tree.element.hidden = !answer.tree;
    this._timeline.update(this._entries(answer));
    await this._compare(signal);
    return answer;
  }

  resync() {
    if (this._route.controller !== undefined) resync(this._target());
  }

  _target(answered) {
    const { controller, bucket = answered, key } = this._route;
    return { controller, bucket, keys: [key] };
  }

  moved(query) {
    this._query = query;
    this._compare().then(() => this._diff.focus());
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
      const recorded = get("/api/recording", { controller, key }).then((answer) => JSON.parse(answer.text).outcome?.traceback);
      text.textContent = shown((await recorded.catch((error) => error.message)) || "No traceback was recorded.", 20_000);
    }, { once: true });
    return details;
  }

  _drawButtons({ off, explain, bucket: answered }) {
    const { controller, key } = this._route;
    const target = this._target(answered);
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
    setText(this._text, shown(object ? object.text : "", Infinity));
    this._text.hidden = !object;
    const cut = object?.omitted ? `${counted(object.omitted, "character")} are left out. ` : "";
    replace(this._note, object ? cut : "The object does not exist, or cannot be read.");
  }

  _entries({ revisions, explain, off, bucket: answered }) {
    const target = this._target(answered);
    const entries = (revisions ?? []).map((revision, index, known) => {
      const before = known[index - 1];
      const href = before && withQuery(pathOf(this._route, this._route.key), { from: before.revision, to: revision.revision });
      const isOld = index < known.length - 1 && !revision.deleted && !off.rollback;
      return revisionEntry(revision, href, isOld && (() => rollback(target, revision.revision)));
    });
    const syncs = (explain ?? []).flatMap((explanation) => explanation.syncs ?? []);
    const events = (explain ?? []).flatMap((explanation) => explanation.events ?? []).map(eventEntry);
    return [...entries, ...syncs.map(syncEntry), ...events];
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

/** A tree of the branches that `natsctl describe -o json` prints; the controller answers their manifests. */
class Tree {
  constructor(controller) {
    this._controller = controller;
    this._manifests = new Map(); // the open ones, by name
    this._folded = new Set();
    this.element = h("ul", {
      role: "tree", class: "tree", "aria-label": "Objects", onkeydown: (event) => this._press(event),
    });
  }

  /** Show a tree. The active item and the folded ones stay as they are. */
  update(root) {
    this._root = root;
    once(this.element, [root, [...this._manifests]], () => {
      const active = document.activeElement?.closest("[role=treeitem]")?.dataset.name;
      const hadFocus = this.element.contains(document.activeElement);
      replace(this.element, this._item(root, 1));
      const items = this._items();
      const item = items.find((candidate) => candidate.dataset.name === active) ?? items[0];
      item.tabIndex = 0;
      if (hadFocus) item.focus();
    });
  }

  _item(branch, level) {
    const name = `${branch.kind}/${branch.key}`;
    const text = shown(name, 200);
    const isOpen = this._manifests.has(name);
    const title = branch.bucket
      ? h("a", { href: pathOf(branch, branch.key), tabindex: -1, class: "text" }, text)
      : h("span", { class: "text" }, text);
    const details = h("span", { class: "details" },
      badge(READY[branch.ready] ?? branch.ready), branch.reason && h("span", { class: "text" }, shown(branch.reason, 200)),
      branch.created && age(branch.created),
      branch.revision !== null && h("span", {}, `revision ${branch.revision}`),
      !branch.bucket && h("button", {
        type: "button", class: "small", tabindex: -1, "aria-expanded": String(isOpen),
        "aria-label": `Manifest of ${text}`, onclick: () => this._toggle(branch, name),
      }, "Manifest"));
    const manifest = isOpen &&
      h("pre", { class: "text", tabindex: 0, role: "region", "aria-label": `Manifest of ${text}` }, this._manifests.get(name));
    const children = (branch.branches ?? []).map((child) => this._item(child, level + 1));
    const more = branch.more > 0 && h("li", { role: "none", class: "muted" }, `and ${counted(branch.more, "more object")}`);
    return h("li", {
      role: "treeitem", tabindex: -1, "aria-level": level, "data-name": name,
      "aria-label": `${text}, ready: ${shown(branch.ready, 40)}`,
      "aria-expanded": children.length ? String(!this._folded.has(name)) : null,
    }, h("div", { class: "node" }, title, details), manifest,
      (children.length > 0 || more) && h("ul", { role: "group" }, ...children, more));
  }

  async _toggle(branch, name) {
    if (!this._manifests.delete(name)) {
      const query = { controller: this._controller, kind: branch.kind, key: branch.key };
      const answer = await get("/api/manifest", query).catch((error) => ({ text: error.message }));
      this._manifests.set(name, shown(answer.text, 100_000));
    }
    this.update(this._root);
  }

  _items() {
    return [...this.element.querySelectorAll("[role=treeitem]")]
      .filter((item) => !item.parentElement.closest("[aria-expanded=false]"));
  }

  _press(event) {
    const item = event.target.closest("[role=treeitem]");
    const items = this._items();
    const at = items.indexOf(item);
    const expanded = item.getAttribute("aria-expanded");
    const next = {
      ArrowDown: items[at + 1], ArrowUp: items[at - 1], Home: items[0], End: items.at(-1),
      ArrowRight: expanded && items[at + 1], ArrowLeft: item.parentElement.closest("[role=treeitem]"),
    };
    if (event.key === "ArrowRight" && expanded === "false") this._fold(item, false);
    else if (event.key === "ArrowLeft" && expanded === "true") this._fold(item, true);
    else if (event.key in next) this._focus(next[event.key]);
    else if (event.key === "Enter") item.querySelector("a, button")?.click();
    else return;
    event.preventDefault();
  }

  _fold(item, isFolded) {
    item.setAttribute("aria-expanded", String(!isFolded));
    if (isFolded) this._folded.add(item.dataset.name);
    else this._folded.delete(item.dataset.name);
  }

  _focus(item) {
    if (!item) return;
    for (const other of this._items()) other.tabIndex = -1;
    item.tabIndex = 0;
    item.focus();
  }
}

/** A list of entries, which are updated in place: two with one `id` are the same, `text` tells a change. */
class Timeline {
  constructor() {
    this._items = new Map();
    this._list = h("ol", { class: "timeline", "aria-label": "Timeline" });
    this._empty = h("p", { class: "empty", hidden: true }, "No revision, sync or event is known.");
    this.element = h("div", {}, this._list, this._empty);
  }

  update(entries) {
    const newest = entries.toSorted((a, b) => Date.parse(b.time) - Date.parse(a.time)).slice(0, ENTRIES_MAX);
    const items = new Map();
    for (const { id, kind, text, draw } of newest) {
      const item = this._items.get(id) ?? { element: h("li", { class: kind }), text: "" };
      if (item.text !== text) replace(item.element, ...draw());
      items.set(id, { element: item.element, text });
    }
    this._items = items;
    arrange(this._list, [...items.values()].map((item) => item.element));
    this._empty.hidden = newest.length > 0;
  }
}

function revisionEntry(revision, href, restore) {
  const { revision: number, created, deleted, bytes, changed = [] } = revision;
  const title = deleted ? `Revision ${number}: deleted` : `Revision ${number}`;
  return entry(`revision ${number}`, created, `revision ${deleted ? "gone" : ""}`, [revision, Boolean(restore)], () => [
    h("span", { class: "what" }, href ? h("a", { href }, title) : title), age(created),
    h("p", { class: "text" }, deleted ? "" : counted(bytes, "byte"),
      changed.length ? `, changed ${changed.map((name) => shown(name, 80)).join(", ")}` : ""),
    restore && h("button", { type: "button", class: "small", "aria-label": `Restore revision ${number}`, onclick: restore }, "Restore"),
  ]);
}

function syncEntry(sync) {
  const { operation, started, duration_s, error, created, updated, deleted } = sync;
  const counts = [[created, "created"], [updated, "changed"], [deleted, "deleted"]]
    .filter(([number]) => number).map(([number, verb]) => `${number} ${verb}`);
  return entry(`sync ${started}`, started, `sync ${error ? "failed" : "done"}`, sync, () => [
    h("span", { class: "what text" }, `→ ${shown(operation, 80)}`), age(started),
    h("p", {}, `${error ? "Sync failed" : "Sync"} in ${duration(duration_s)}`, counts.length ? `: ${counts.join(", ")}` : ""),
    error && h("p", { class: "bad text" }, shown(error, 2_000)),
  ]);
}

function eventEntry(event) {
  const id = `event ${event.reason} ${event.first} ${event.message}`;
  return entry(id, event.last, `event ${event.type === "Warning" ? "warning" : ""}`, event, () => [
    h("span", { class: "what text" }, shown(event.reason, 80)), age(event.last),
    h("p", { class: "text" }, shown(event.message, 2_000), event.count > 1 ? ` (${event.count} times)` : ""),
  ]);
}

function entry(id, time, kind, data, draw) {
  return { id, time, kind, text: JSON.stringify(data), draw };
}
