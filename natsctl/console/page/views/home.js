/** Shows all controllers, and the failing keys by their message. */

import { get } from "../api.js";
import { h, replace } from "../dom.js";
import { count, counted, duration, shown } from "../format.js";
import { badge } from "../parts/badge.js";
import { sparkline } from "../parts/sparkline.js";
import { Table } from "../parts/table.js";
import { paths } from "../router.js";

const HISTORY_S = 15 * 60;

/** @returns {import("../app.js").View} */
export function homeView() {
  const table = new Table({
    label: "Controllers", columns: COLUMNS, keyOf: (row) => row.name, empty: "No controller runs.",
  });
  const failing = new Table({
    label: "Failing keys", columns: FAILING, keyOf: (group) => group.message, empty: "No key fails.",
  });
  const hint = h("p", { class: "hint", hidden: true }, "No daemon answers. Start one with ",
    h("code", {}, "natsctl run"), ", or look at the ", h("a", { href: "/buckets" }, "buckets"), ".");
  const problems = h("ul", { class: "problems", "aria-label": "Problems" });
  const element = h("div", {}, hint, table.element, problems, h("h2", {}, "Failing keys"), failing.element);
  return {
    title: "Controllers",
    element,
    live: { view: "home" },
    async load(signal) {
      const answer = await get("/api/home", {}, signal);
      hint.hidden = !answer.no_daemon;
      table.update(answer.controllers);
      failing.update(answer.failing);
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
  history("syncs", "sync", "Syncs, 15 min", ""),
  history("errors", "error", "Errors, 15 min", "bad"),
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

function number(name, label, kind) {
  const draw = (row) => h("span", { class: row[name] ? kind : "" }, count(row[name]));
  return { name, label, kind: "number", value: (row) => row[name], draw };
}

function history(name, noun, label, kind) {
  return {
    name, label, kind: "history", value: (row) => row.history?.map((step) => step[name]),
    draw: (row) => row.history?.length
      ? sparkline(noun, row.history.map((step) => step[name]), HISTORY_S / row.history.length, kind)
      : h("span", { class: "muted" }, "not known"),
  };
}

function problemsOf(row) {
  const texts = [...(row.problems ?? [])];
  if (row.conflict) texts.push(row.conflict);
  if (row.garbage_held) texts.push(`garbage collection is held: ${row.garbage_held}`);
  return texts.map((text) => h("li", { class: "text" }, h("strong", {}, shown(row.name, 80)), `: ${shown(text)}`));
}
