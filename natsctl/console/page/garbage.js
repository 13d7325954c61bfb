/** Shows the orphans of a controller, and deletes the selected ones. */

import { button, collect } from "./actions.js";
import { counted, duration, h, link, NOTHING, paths, replace, shown } from "./dom.js";
import { listView } from "./home.js";
import { get } from "./server.js";
import { column, numbers, Table } from "./table.js";

const nameOf = ({ kind, key }) => `${kind}/${key}`;

const HELD = [
  column("Controller", ({ name }) => name, { heads: true, draw: ({ name }) => link(paths.garbage(name), name) }),
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

/** Show the controllers whose orphans may be looked at. */
export function controllersView() {
  const table = new Table({ label: "Controllers", columns: HELD, keyOf: ({ name }) => name, empty: "No controller runs." });
  return listView("Garbage", "home", table, ({ controllers }) => controllers);
}

/** Show the orphans of a controller. */
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
      const text = answer.refused ? `Garbage collection is held: ${shown(answer.refused)}` : "";
      if (held.textContent !== text) held.textContent = text;
      replace(more, answer.more ? `${counted(answer.more, "more object")} were not checked.` : null);
      table.update(answer.orphans);
      return answer;
    },
  };
}
