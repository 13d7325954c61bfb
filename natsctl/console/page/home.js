/** Shows what needs somebody first, then all controllers, the daemons of each, and the buckets. */

import { age, arrange, badge, count, counted, duration, h, link, NOTHING, replace, shown, sparkline } from "./dom.js";
import { paths } from "./paths.js";
import { get, withQuery } from "./server.js";
import { Table } from "./table.js";

const LANE_MAX = 10;
const LANES = { held: "synced for", ready: "ready for", waiting: "ready in" };

/** @returns {import("./app.js").View} */
export function homeView() {
  const causes = new Table({
    label: "Causes", columns: CAUSES, empty: "", keyOf: (cause) => `${cause.controller} ${cause.state} ${cause.message}`,
  });
  const table = new Table({
    label: "Controllers", columns: CONTROLLERS, keyOf: (row) => row.name, empty: "No controller exists.",
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
      const rows = controllers.flatMap(queuedKeys);
      replace(queued, `Work queue: ${counted(rows.length, "key")}`);
      queue.update(rows);
      return answer;
    },
  };
}

const CAUSES = [
  {
    name: "count", label: "Keys", kind: "number", value: (cause) => cause.count,
    draw: ({ controller, state, message, count: number }) =>
      h("a", { href: withQuery(paths.keys(controller), { state, cause: message }), class: "sum" }, counted(number, "key")),
  },
  { name: "state", label: "State", value: (cause) => cause.state, draw: ({ state }) => badge(state) },
  { name: "cause", label: "Cause", heads: true, kind: "text wide", value: (cause) => cause.message },
  {
    name: "controller", label: "Controller", value: (cause) => cause.controller,
    draw: ({ controller }) => link(paths.keys(controller), controller),
  },
  { name: "since", label: "First seen", value: (cause) => cause.since, draw: ({ since }) => age(since), kind: "seen" },
  {
    name: "keys", label: "Examples", kind: "examples", value: (cause) => cause.keys,
    draw: ({ controller, keys }) =>
      h("span", { class: "links" }, ...keys.slice(0, 3).map((key) => link(paths.key(controller, key), key))),
  },
];

const CONTROLLERS = [
  {
    name: "controller", label: "Controller", heads: true, value: (row) => row.name,
    draw: (row) => link(paths.keys(row.name), row.name),
  },
  {
    name: "state", label: "State", value: (row) => [row.state, row.mode, row.conflict, row.paused_whole],
    draw: (row) => h("span", { class: "badges" }, badge(row.state) ?? NOTHING,
      row.conflict ? badge("conflict", row.conflict) : null,
      h("span", { class: row.conflict ? "bad" : "muted" }, row.mode),
      row.paused_whole ? badge("paused", row.paused_whole.reason) : null),
  },
  { name: "keys", label: "Keys", kind: "number", value: (row) => row.keys, draw: (row) => count(row.keys) },
  trouble("failing", "bad"), trouble("invalid", "bad"), trouble("quarantined", "bad"), trouble("paused", "warn"),
  {
    name: "queue", label: "Queue", kind: "number", value: (row) => [row.queued, row.held, row.waiting],
    draw: (row) => h("span", { title: `${count(row.queued)} ready, ${count(row.held)} being synced, ${count(row.waiting)} waiting` },
      count(row.queued)),
  },
  { name: "oldest", label: "Oldest change", kind: "number", value: (row) => row.oldest_unanswered_s && duration(row.oldest_unanswered_s) },
  {
    name: "activity", label: "Syncs in 15 min", kind: "history", value: (row) => row.activity,
    draw: ({ activity }) => (activity ? sparkline(activity) : h("span", { class: "muted" }, "not known")),
  },
];

const QUEUE = [
  {
    name: "key", label: "Key", heads: true, value: (row) => [row.controller, row.key],
    draw: (row) => link(paths.key(row.controller, row.key), row.key),
  },
  { name: "controller", label: "Controller", kind: "text", value: (row) => row.controller },
  {
    name: "lane", label: "State", value: (row) => [row.lane, Math.ceil(row.s)],
    draw: ({ lane, s }) => `${LANES[lane]} ${duration(s)}`,
  },
  { name: "reason", label: "Reason", value: (row) => row.reason },
];

/** A count that links to the keys; nothing to worry about is a quiet dash. */
function trouble(name, kind) {
  const draw = (row) => (row[name]
    ? h("a", { href: withQuery(paths.keys(row.name), { state: name }), class: kind }, count(row[name]))
    : h("span", { class: "muted" }, row[name] === 0 ? "0" : NOTHING));
  return { name, label: name.charAt(0).toUpperCase() + name.slice(1), kind: "number", value: (row) => row[name], draw };
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

/** Return the keys in the work queues of a controller: those that take the longest come first. */
function queuedKeys({ name: controller, lanes }) {
  return Object.keys(LANES).flatMap((lane) =>
    (lanes?.[lane] ?? []).slice(0, LANE_MAX).map((entry) => ({ ...entry, lane, controller })));
}

function problemsOf(row) {
  const texts = [...(row.problems ?? []), row.error?.message, row.conflict].filter(Boolean)
    .map((text) => [`: ${shown(text)}`]);
  if (row.garbage_held) {
    texts.push([`: garbage collection is held: ${shown(row.garbage_held)} `, h("a", { href: paths.garbage(row.name) }, "Look at it")]);
  }
  return texts.map((content) =>
    h("li", { class: "text" }, h("strong", {}, link(paths.keys(row.name), row.name)), ...content));
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
      const present = answer.controllers.map((row) => {
        const section = sections.get(row.name) ?? memberSection(row.name);
        sections.set(row.name, section);
        section.update(row);
        return section.element;
      });
      arrange(element, present.length ? present : [empty]);
      return answer;
    },
  };
}

function memberSection(name) {
  const label = `Daemons of ${shown(name, 80)}`;
  const table = new Table({ label, columns: DAEMONS, keyOf: (daemon) => daemon.id || daemon.name, empty: "No daemon runs it." });
  const line = h("p", { class: "muted text" });
  return {
    element: h("section", {}, h("h2", { class: "text" }, link(paths.keys(name), name)), line, table.element),
    update({ mode, daemons }) {
      const leader = daemons.find((daemon) => daemon.mode === "leader");
      const text = leader ? `${mode}; ${shown(leader.name, 80)} leads` : mode;
      if (line.textContent !== text) line.textContent = text;
      table.update(daemons);
    },
  };
}

const DAEMONS = [
  { name: "daemon", label: "Daemon", heads: true, kind: "text", value: (daemon) => daemon.name },
  { name: "mode", label: "Mode", value: (daemon) => daemon.mode || "not known" },
  {
    name: "state", label: "State", value: (daemon) => [daemon.state, daemon.answered],
    draw: ({ state, answered }) => badge(answered === false ? "no answer" : state) ?? NOTHING,
  },
  { name: "keys", label: "Keys", kind: "number", value: (daemon) => daemon.keys, draw: (daemon) => count(daemon.keys) },
  { name: "version", label: "Version", kind: "text", value: (daemon) => daemon.version },
  {
    name: "trouble", label: "Problem", kind: "text wide",
    value: (daemon) => [daemon.trouble, daemon.failure].filter(Boolean).join("; "),
  },
];

/** Show the buckets of the account. */
export function bucketsView() {
  const table = new Table({
    label: "Buckets", columns: BUCKETS, keyOf: (bucket) => bucket.name, empty: "There is no bucket.",
  });
  const more = h("p", { class: "muted" });
  return {
    title: "Buckets",
    element: h("div", {}, table.element, more),
    live: { view: "buckets" },
    async load(signal) {
      const answer = await get("/api/buckets", {}, signal);
      table.update(answer.buckets);
      more.textContent = answer.more ? counted(answer.more, "more bucket") : "";
      return answer;
    },
  };
}

const BUCKETS = [
  {
    name: "bucket", label: "Bucket", heads: true, sorts: true, value: (bucket) => bucket.name,
    draw: (bucket) => link(paths.bucket(bucket.name), bucket.name),
  },
  size("values"), size("bytes"), size("history"),
  {
    name: "controllers", label: "Controllers", value: (bucket) => bucket.controllers,
    draw: (bucket) => h("span", { class: "links" }, ...(bucket.controllers ?? []).map((name) => link(paths.keys(name), name))),
  },
];

function size(name) {
  const label = name.charAt(0).toUpperCase() + name.slice(1);
  return { name, label, kind: "number", sorts: true, value: (bucket) => bucket[name], draw: (bucket) => count(bucket[name]) };
}
