/** Shows tables: what needs somebody first, with all controllers; the daemons, the buckets, and garbage. */

import { button, collect } from "./actions.js";
import { age, badge, count, counted, duration, h, link, NOTHING, path, pathOf, replace, setText, shown } from "./dom.js";
import { get, withQuery } from "./server.js";
import { column, numbers, Table } from "./table.js";

const LANE_MAX = 10;
const LANES = { held: "synced for", ready: "ready for", waiting: "ready in" };

const toController = (name) => link(pathOf({ controller: name }), name);

const CAUSES = [
  column("Keys", ({ count: number }) => number, {
    kind: "number",
    draw: ({ controller, state, message, count: number }) =>
      h("a", { href: withQuery(pathOf({ controller }), { state, cause: message }), class: "sum" }, counted(number, "key")),
  }),
  column("State", ({ state }) => state, { draw: ({ state }) => badge(state) }),
  column("Cause", ({ message }) => message, { heads: true, kind: "text wide" }),
  column("Controller", ({ controller }) => controller, { draw: ({ controller }) => toController(controller) }),
  column("First seen", ({ since }) => since, { draw: ({ since }) => age(since), kind: "seen" }),
  column("Examples", ({ keys }) => keys, {
    kind: "examples",
    draw: ({ controller, keys }) =>
      h("span", { class: "links" }, ...keys.slice(0, 3).map((key) => link(pathOf({ controller }, key), key))),
  }),
];

const CONTROLLERS = [
  column("Controller", ({ name }) => name, { heads: true, draw: ({ name }) => toController(name) }),
  column("State", (row) => [row.state, row.mode, row.conflict, row.paused_whole], {
    draw: (row) => h("span", { class: "badges" }, badge(row.state) ?? NOTHING,
      row.conflict && badge("conflict", row.conflict),
      h("span", { class: row.conflict ? "bad" : "muted" }, row.mode),
      row.paused_whole && badge("paused", row.paused_whole.reason)),
  }),
  numbers("Keys", ({ keys }) => keys),
  ...["Failing", "Invalid", "Quarantined", "Paused"].map(trouble),
  column("Queue", (row) => [row.queued, row.held, row.waiting], {
    kind: "number",
    draw: (row) => h("span", { title: `${count(row.queued)} ready, ${count(row.held)} being synced, ${count(row.waiting)} waiting` },
      count(row.queued)),
  }),
  column("Oldest change", (row) => row.oldest_unanswered_s && duration(row.oldest_unanswered_s), { kind: "number" }),
  numbers("Syncs", ({ syncs }) => syncs),
  numbers("Failed syncs", ({ failures }) => failures),
];

const QUEUE = [
  column("Key", (row) => [row.controller, row.key], {
    heads: true, draw: ({ controller, key }) => link(pathOf({ controller }, key), key),
  }),
  column("Controller", ({ controller }) => controller, { kind: "text" }),
  column("State", ({ lane, s }) => [lane, Math.ceil(s)], { draw: ({ lane, s }) => `${LANES[lane]} ${duration(s)}` }),
  column("Reason", ({ reason }) => reason),
];

const DAEMONS = [
  column("Controller", ({ controller }) => controller, { draw: ({ controller }) => toController(controller) }),
  column("Daemon", ({ name }) => name, { heads: true, kind: "text" }),
  column("Mode", ({ mode }) => mode || "not known"),
  column("State", ({ state, answered }) => [state, answered], {
    draw: ({ state, answered }) => badge(answered === false ? "no answer" : state) ?? NOTHING,
  }),
  numbers("Keys", ({ keys }) => keys),
  column("Version", ({ version }) => version, { kind: "text" }),
  column("Problem", ({ trouble: text, failure }) => [text, failure].filter(Boolean).join("; "), { kind: "text wide" }),
];

const BUCKETS = [
  column("Bucket", ({ name }) => name, { heads: true, draw: ({ name }) => link(pathOf({ bucket: name }), name) }),
  ...["Values", "Bytes", "History"].map((label) => numbers(label, (row) => row[label.toLowerCase()])),
  column("Controllers", ({ controllers }) => controllers, {
    draw: ({ controllers }) => h("span", { class: "links" }, ...(controllers ?? []).map(toController)),
  }),
];

/** A count that links to the keys; nothing to worry about is a quiet dash. */
function trouble(label) {
  const state = label.toLowerCase();
  const draw = (row) => (row[state]
    ? h("a", { href: withQuery(pathOf({ controller: row.name }), { state }), class: state === "paused" ? "warn" : "bad" }, count(row[state]))
    : h("span", { class: "muted" }, row[state] === 0 ? "0" : NOTHING));
  return numbers(label, (row) => row[state], { draw });
}

export function homeView() {
  const causes = new Table({
    label: "Causes", columns: CAUSES, empty: "", keyOf: (cause) => `${cause.controller} ${cause.state} ${cause.message}`,
  });
  const table = new Table({
    label: "Controllers", columns: CONTROLLERS, keyOf: ({ name }) => name, empty: "No controller exists.",
  });
  const queue = new Table({
    label: "Work queue", columns: QUEUE, keyOf: (row) => `${row.controller} ${row.lane} ${row.key}`,
    empty: "No key is in a work queue.",
  });
  const hint = h("p", { class: "hint", hidden: true }, "No daemon answers. Start one with ",
    h("code", {}, "natsctl run"), ", or look at the ", h("a", { href: "/buckets" }, "buckets"), ".");
  const verdict = h("p", { class: "muted" });
  const problems = h("ul", { class: "problems", "aria-label": "Problems" });
  const queued = h("summary");
  return {
    title: "Controllers",
    heading: ({ need, controllers: { length } }) => {
      if (!length) return "No controller exists";
      if (!need.length) return length === 1 ? "The controller is well" : `All ${length} controllers are well`;
      return `${need.length} of ${counted(length, "controller")} ${need.length === 1 ? "needs" : "need"} you`;
    },
    element: h("div", {}, hint, problems, causes.element, verdict, h("h2", {}, "Controllers"), table.element,
      h("details", { class: "queue" }, queued, queue.element)),
    live: { view: "home" },
    async load(signal) {
      const answer = await get("/api/home", {}, signal);
      const { controllers, need } = answer;
      hint.hidden = !answer.no_daemon;
      causes.update(answer.causes);
      replace(verdict, verdictOf(answer));
      replace(problems, ...controllers.flatMap(problemsOf));
      const needing = (row) => Number(!need.includes(row.name));
      table.update(controllers.toSorted((a, b) => needing(a) - needing(b)));
      const rows = controllers.flatMap(({ name: controller, lanes }) => Object.keys(LANES).flatMap((lane) =>
        (lanes?.[lane] ?? []).slice(0, LANE_MAX).map((entry) => ({ ...entry, lane, controller }))));
      replace(queued, `Work queue: ${counted(rows.length, "key")}`);
      queue.update(rows);
      return answer;
    },
  };
}

/** Return what no cause means: unknown is not good. */
function verdictOf({ controllers, causes, more }) {
  const unknown = controllers.filter((row) => row.failing === null || row.failing === undefined);
  if (unknown.length) {
    return `It is not known which keys of ${unknown.map((row) => shown(row.name, 80)).join(", ")} fail.`;
  }
  if (more) return `${counted(more, "more key")} need you that the daemons do not name.`;
  return controllers.length && !causes.length ? "No key fails." : null;
}

function problemsOf({ name, problems, error, conflict, garbage_held: held }) {
  const texts = [...(problems ?? []), error?.message, conflict].filter(Boolean).map((text) => [`: ${shown(text)}`]);
  if (held) texts.push([`: garbage collection is held: ${shown(held)} `, h("a", { href: path("garbage", name) }, "Look at it")]);
  return texts.map((content) => h("li", { class: "text" }, h("strong", {}, toController(name)), ...content));
}

/** Show who leads each controller, or which member has how many keys. */
export function membersView() {
  const table = new Table({
    label: "Daemons", columns: DAEMONS, keyOf: ({ controller, id, name }) => `${controller} ${id || name}`,
    empty: "No daemon answers.",
  });
  return listView("Members", "home", table, ({ controllers }) => controllers.flatMap(({ name, daemons }) =>
    daemons.map((daemon) => ({ ...daemon, controller: name }))));
}

export function bucketsView() {
  const table = new Table({ label: "Buckets", columns: BUCKETS, keyOf: ({ name }) => name, empty: "There is no bucket." });
  return listView("Buckets", "buckets", table, ({ buckets }) => buckets, ({ more }) => more > 0 && counted(more, "more bucket"));
}

/** Return a view of an answer that is one table, with a line below. */
function listView(title, view, table, rowsOf, textOf = () => null) {
  const line = h("p", { class: "muted" });
  return {
    title,
    element: h("div", {}, table.element, line),
    live: { view },
    async load(signal) {
      const answer = await get(`/api/${view}`, {}, signal);
      table.update(rowsOf(answer));
      replace(line, textOf(answer));
      return answer;
    },
  };
}

const nameOf = ({ kind, key }) => `${kind}/${key}`;

const HELD = [
  column("Controller", ({ name }) => name, { heads: true, draw: ({ name }) => link(path("garbage", name), name) }),
  column("Held", (row) => row.garbage_held || NOTHING, { kind: "text wide" }),
];

const ORPHANS = [
  column("Object", nameOf, { heads: true, kind: "text" }),
  column("Owner", ({ owner }) => owner, { kind: "text" }),
  column("Reason", ({ reason }) => reason, { kind: "text wide" }),
  column("State", ({ held, due }) => [held, due], {
    kind: "text",
    draw: ({ held, due, suspected_s: suspected }) =>
      (held ? `held: ${shown(held)}` : due ? "due" : `in its grace period for ${duration(suspected)}`),
  }),
  numbers("Revision", ({ revision }) => revision),
];

export function controllersView() {
  const table = new Table({ label: "Controllers", columns: HELD, keyOf: ({ name }) => name, empty: "No controller runs." });
  return listView("Garbage", "home", table, ({ controllers }) => controllers);
}

export function garbageView({ controller }, refresh) {
  let answer = { controller, orphans: [], refused: "", more: 0 };
  const held = h("p", { class: "bad text", role: "status" });
  const more = h("p", { class: "muted" });
  const apply = h("span");
  const all = h("input", {
    type: "checkbox", onchange: () => table.select(all.checked ? answer.orphans.map(nameOf) : []),
  });
  const chosen = () => answer.orphans.filter((orphan) => table.selected.has(nameOf(orphan)));
  const selected = () => {
    const { size } = table.selected;
    all.checked = size > 0 && size === answer.orphans.length;
    const label = size ? `Apply for ${counted(size, "object")}` : "Apply";
    const control = button(label, async () => (await collect(answer, chosen())) && refresh(), answer.off);
    control.classList.add("danger");
    control.disabled = size === 0;
    replace(apply, control);
  };
  const table = new Table({ label: "Orphans", columns: ORPHANS, keyOf: nameOf, empty: "There is no garbage.", selected });
  return {
    title: `Garbage of ${shown(controller, 80)}`,
    live: { view: "garbage", controller },
    element: h("div", {}, held,
      h("div", { class: "bar-of-tools" }, h("label", { class: "inline" }, all, "Select all"), apply), table.element, more),
    async load(signal) {
      answer = await get("/api/garbage", { controller }, signal);
      setText(held, answer.refused ? `Garbage collection is held: ${shown(answer.refused)}` : "");
      replace(more, answer.more ? `${counted(answer.more, "more object")} were not checked.` : null);
      table.update(answer.orphans);
      return answer;
    },
  };
}
