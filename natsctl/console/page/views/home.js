/** Shows all controllers, and the failing keys by their message. */

import { get } from "../api.js";
import { h, replace } from "../dom.js";
import { count, counted, duration, shown } from "../format.js";
import { badge } from "../parts/badge.js";
import { sparkline } from "../parts/sparkline.js";
import { Table } from "../parts/table.js";
import { paths } from "../router.js";

const LANE_MAX = 10;

/** @returns {import("../app.js").View} */
export function homeView() {
  const table = new Table({
    label: "Controllers", columns: COLUMNS, keyOf: (row) => row.name, empty: "No controller exists.",
  });
  const failing = new Table({
    label: "Failing keys", columns: FAILING, keyOf: (group) => group.message, empty: "No key fails.",
  });
  const hint = h("p", { class: "hint", hidden: true }, "No daemon answers. Start one with ",
    h("code", {}, "natsctl run"), ", or look at the ", h("a", { href: "/buckets" }, "buckets"), ".");
  const queue = new Table({
    label: "Work queue", columns: QUEUE, keyOf: (row) => `${row.controller} ${row.lane} ${row.key}`,
    empty: "No key is in a work queue.",
  });
  const problems = h("ul", { class: "problems", "aria-label": "Problems" });
  const element = h("div", {}, hint, table.element, problems, 
    h("h2", {}, "Failing keys"), failing.element, h("h2", {}, "Work queue"), queue.element);
  return {
    title: "Controllers",
    element,
    live: { view: "home" },
    async load(signal) {
      const answer = await get("/api/home", {}, signal);
      hint.hidden = !answer.no_daemon;
      table.update(answer.controllers);
      failing.update(answer.failing, emptyOf(answer.controllers));
      queue.update(answer.controllers.flatMap(queued));
      replace(problems, ...answer.controllers.flatMap(problemsOf));
      return answer;
    },
  };
}

const COLUMNS = [
  {
    name: "controller", label: "Controller", heads: true, value: (row) => row.name,
    draw: (row) => h("a", { href: paths.keys(row.name), class: "text" }, shown(row.name, 80)),
  },
  {
    name: "state", label: "State", value: (row) => [row.state, row.mode, row.conflict, row.paused_whole],
    draw: (row) => h("span", { class: "badges" }, badge(row.state),
      row.conflict ? badge("conflict", row.conflict) : null,
      h("span", { class: row.conflict ? "bad" : "" }, row.mode),
      row.paused_whole ? badge("paused", row.paused_whole.reason) : null),
  },
  number("keys", "Keys"),
  number("failing", "Failing", "bad"),
  number("invalid", "Invalid", "bad"),
  number("paused", "Paused", "warn"),
  {
    name: "queue", label: "Queue", kind: "number", value: (row) => [row.queued, row.held, row.waiting],
    draw: (row) => h("span", { title: `${count(row.queued)} queued, ${count(row.held)} held, ${count(row.waiting)} waiting` },
      count(row.queued)),
  },
  {
    name: "oldest", label: "Oldest unanswered", kind: "number",
    value: (row) => duration(row.oldest_unanswered_s),
  },
  activity("syncs", "sync", "Syncs, 15 min", ""),
  activity("failures", "failed sync", "Errors, 15 min", "bad"),
];

const FAILING = [
  { name: "count", label: "Keys", kind: "number", value: (group) => count(group.count) },
  { name: "message", label: "Message", heads: true, kind: "text wide", value: (group) => group.message },
  {
    name: "keys", label: "Examples", value: (group) => [group.keys, group.count],
    draw: (group) => {
      const links = group.keys.slice(0, 5).map(({ controller, key }) =>
        h("a", { href: paths.key(controller, key), class: "text" }, shown(key, 80)));
      const more = group.count - links.length;
      return h("span", { class: "links" }, ...links, more > 0 && `and ${counted(more, "more key")}`);
    },
  },
];

const QUEUE = [
  {
    name: "key", label: "Key", heads: true, value: (row) => [row.controller, row.key],
    draw: (row) => h("a", { href: paths.key(row.controller, row.key), class: "text" }, shown(row.key, 80)),
  },
  { name: "controller", label: "Controller", kind: "text", value: (row) => row.controller },
  {
    name: "lane", label: "State", value: (row) => [row.lane, Math.ceil(row.s)],
    draw: ({ lane, s }) => ({
      held: `is synced for ${duration(s)}`, ready: `ready for ${duration(s)}`, waiting: `ready in ${duration(s)}`,
    })[lane],
  },
  { name: "reason", label: "Reason", value: (row) => row.reason },
];

/** Return what an empty list of failing keys means: unknown is not good. */
function emptyOf(controllers) {
  const unknown = controllers.filter((row) => row.failing === null || row.failing === undefined);
  if (unknown.length === 0) return controllers.length ? "No key fails." : "No controller exists.";
  const names = unknown.map((row) => shown(row.name, 80)).join(", ");
  return `It is not known which keys of ${names} fail.`;
}

/** Return the keys in the work queues of a controller: those that take the longest come first. */
function queued({ name: controller, lanes }) {
  return ["held", "ready", "waiting"].flatMap((lane) =>
    (lanes?.[lane] ?? []).slice(0, LANE_MAX).map((entry) => ({ ...entry, lane, controller })));
}

function number(name, label, kind) {
  const draw = (row) => h("span", { class: row[name] ? kind : "" }, count(row[name]));
  return { name, label, kind: "number", value: (row) => row[name], draw };
}

function activity(name, noun, label, kind) {
  return {
    name, label, kind: "history", value: (row) => row.activity?.[name],
    draw: (row) => row.activity
      ? sparkline(noun, row.activity[name], row.activity.interval_s, kind)
      : h("span", { class: "muted" }, "not known"),
  };
}

function problemsOf(row) {
  const texts = [...(row.problems ?? [])];
  if (row.error) texts.push(row.error.message);
  if (row.conflict) texts.push(row.conflict);
  if (row.garbage_held) texts.push(`garbage collection is held: ${row.garbage_held}`);
  return texts.map((text) => h("li", { class: "text" }, h("strong", {}, shown(row.name, 80)), `: ${shown(text)}`));
}
