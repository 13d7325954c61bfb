/** Shows what needs somebody first, then all controllers, the daemons of each, and the buckets. */

import { age, arrange, badge, count, counted, duration, h, link, NOTHING, paths, replace, shown, sparkline } from "./dom.js";
import { get, withQuery } from "./server.js";
import { column, numbers, Table } from "./table.js";

const LANE_MAX = 10;
const LANES = { held: "synced for", ready: "ready for", waiting: "ready in" };

const toController = (name) => link(paths.keys(name), name);

const CAUSES = [
  column("Keys", ({ count: number }) => number, {
    kind: "number",
    draw: ({ controller, state, message, count: number }) =>
      h("a", { href: withQuery(paths.keys(controller), { state, cause: message }), class: "sum" }, counted(number, "key")),
  }),
  column("State", ({ state }) => state, { draw: ({ state }) => badge(state) }),
  column("Cause", ({ message }) => message, { heads: true, kind: "text wide" }),
  column("Controller", ({ controller }) => controller, { draw: ({ controller }) => toController(controller) }),
  column("First seen", ({ since }) => since, { draw: ({ since }) => age(since), kind: "seen" }),
  column("Examples", ({ keys }) => keys, {
    kind: "examples",
    draw: ({ controller, keys }) =>
      h("span", { class: "links" }, ...keys.slice(0, 3).map((key) => link(paths.key(controller, key), key))),
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
  column("Syncs in 15 min", ({ activity }) => activity, {
    kind: "history",
    draw: ({ activity }) => (activity ? sparkline(activity) : h("span", { class: "muted" }, "not known")),
  }),
];

const QUEUE = [
  column("Key", (row) => [row.controller, row.key], {
    heads: true, draw: ({ controller, key }) => link(paths.key(controller, key), key),
  }),
  column("Controller", ({ controller }) => controller, { kind: "text" }),
  column("State", ({ lane, s }) => [lane, Math.ceil(s)], { draw: ({ lane, s }) => `${LANES[lane]} ${duration(s)}` }),
  column("Reason", ({ reason }) => reason),
];

const DAEMONS = [
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
  column("Bucket", ({ name }) => name, { heads: true, sorts: true, draw: ({ name }) => link(paths.bucket(name), name) }),
  ...["Values", "Bytes", "History"].map((label) => numbers(label, (row) => row[label.toLowerCase()], { sorts: true })),
  column("Controllers", ({ controllers }) => controllers, {
    draw: ({ controllers }) => h("span", { class: "links" }, ...(controllers ?? []).map(toController)),
  }),
];

/** A count that links to the keys; nothing to worry about is a quiet dash. */
function trouble(label) {
  const state = label.toLowerCase();
  const draw = (row) => (row[state]
    ? h("a", { href: withQuery(paths.keys(row.name), { state }), class: state === "paused" ? "warn" : "bad" }, count(row[state]))
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
  if (held) texts.push([`: garbage collection is held: ${shown(held)} `, h("a", { href: paths.garbage(name) }, "Look at it")]);
  return texts.map((content) => h("li", { class: "text" }, h("strong", {}, toController(name)), ...content));
}

/** Show the daemons of each controller: the leader, and the keys of each member. */
export function membersView() {
  const sections = new Map();
  const element = h("div");
  const empty = h("p", { class: "empty" }, "No daemon answers.");
  return {
    title: "Members",
    element,
    live: { view: "home" },
    async load(signal) {
      const answer = await get("/api/home", {}, signal);
      for (const { name, mode, daemons } of answer.controllers) {
        const section = sections.get(name) ?? memberSection(name);
        sections.set(name, section);
        const leader = daemons.find((daemon) => daemon.mode === "leader");
        replace(section.line, leader ? `${mode}; ${shown(leader.name, 80)} leads` : mode);
        section.table.update(daemons);
      }
      const present = answer.controllers.map(({ name }) => sections.get(name).element);
      arrange(element, present.length ? present : [empty]);
      return answer;
    },
  };
}

function memberSection(name) {
  const table = new Table({
    label: `Daemons of ${shown(name, 80)}`, columns: DAEMONS, keyOf: (daemon) => daemon.id || daemon.name,
    empty: "No daemon runs it.",
  });
  const line = h("p", { class: "muted text" });
  return { table, line, element: h("section", {}, h("h2", { class: "text" }, toController(name)), line, table.element) };
}

/** Show the buckets of the account. */
export function bucketsView() {
  const table = new Table({ label: "Buckets", columns: BUCKETS, keyOf: ({ name }) => name, empty: "There is no bucket." });
  return listView("Buckets", "buckets", table, ({ buckets }) => buckets, ({ more }) => more > 0 && counted(more, "more bucket"));
}

/** Return a view of an answer that is one table, with a line below. */
export function listView(title, view, table, rowsOf, textOf = () => null) {
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
