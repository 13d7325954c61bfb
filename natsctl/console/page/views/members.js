/** Shows the daemons of each controller: the leader, and the keys of each member. */

import { get } from "../api.js";
import { h, arrange } from "../dom.js";
import { count, shown } from "../format.js";
import { badge } from "../parts/badge.js";
import { Table } from "../parts/table.js";

/** @returns {import("../app.js").View} */
export function membersView() {
  /** @type {Map<string, {section: HTMLElement, table: Table, line: HTMLElement}>} */
  const sections = new Map();
  const element = h("div");
  const empty = h("p", { class: "empty" }, "No daemon answers.");
  return {
    title: "Members",
    element,
    live: { view: "members" },
    async load(signal) {
      const answer = await get("/api/members", {}, signal);
      const shownNow = answer.controllers.map((controller) => update(sections, controller));
      arrange(element, shownNow.length ? shownNow : [empty]);
      return answer;
    },
  };
}

function update(sections, { name, mode, leader, daemons }) {
  const known = sections.get(name) ?? build(name);
  sections.set(name, known);
  const text = leader ? `${mode}; ${shown(leader, 80)} leads` : mode;
  if (known.line.textContent !== text) known.line.textContent = text;
  known.table.update(daemons);
  return known.section;
}

function build(name) {
  const label = `Daemons of ${shown(name, 80)}`;
  const table = new Table({ label, columns: COLUMNS, keyOf: (daemon) => daemon.id || daemon.name, empty: "No daemon runs it." });
  const line = h("p", { class: "muted text" });
  const section = h("section", {}, h("h2", { class: "text" }, shown(name, 80)), line, table.element);
  return { section, table, line };
}

const COLUMNS = [
  { name: "daemon", label: "Daemon", heads: true, kind: "text", value: (daemon) => daemon.name },
  {
    name: "mode", label: "Mode", value: (daemon) => daemon.mode,
    draw: ({ mode }) => badge(mode) ?? "not known",
  },
  {
    name: "state", label: "State", value: (daemon) => [daemon.state, daemon.answered],
    draw: ({ state, answered }) => badge(answered === false ? "no answer" : state) ?? "–",
  },
  { name: "keys", label: "Keys", kind: "number", value: (daemon) => count(daemon.keys) },
  { name: "version", label: "Version", kind: "text", value: (daemon) => daemon.version },
  {
    name: "trouble", label: "Problem", kind: "text wide",
    value: (daemon) => [daemon.trouble, daemon.failure].filter(Boolean).join("; "),
  },
];
