/** Shows the orphans of a controller, and deletes the selected ones. */

import { button, collect } from "./actions.js";
import { count, counted, duration, h, link, NOTHING, replace, shown } from "./dom.js";
import { paths } from "./paths.js";
import { get } from "./server.js";
import { Table } from "./table.js";

/** Show the controllers whose orphans may be looked at. */
export function controllersView() {
  const columns = [
    {
      name: "controller", label: "Controller", heads: true, value: (row) => row.name,
      draw: (row) => link(paths.garbage(row.name), row.name),
    },
    { name: "held", label: "Held", kind: "text wide", value: (row) => row.garbage_held || NOTHING },
  ];
  const table = new Table({ label: "Controllers", columns, keyOf: (row) => row.name, empty: "No controller runs." });
  return {
    title: "Garbage",
    element: table.element,
    live: { view: "home" },
    async load(signal) {
      const answer = await get("/api/home", {}, signal);
      table.update(answer.controllers);
      return answer;
    },
  };
}

/** A view of the orphans of a controller. */
export class Garbage {
  constructor({ controller }, refresh) {
    this.title = `Garbage of ${shown(controller, 80)}`;
    this.live = { view: "garbage", controller };
    this._controller = controller;
    this._refresh = refresh;
    this._answer = { controller, orphans: [], refused: "", more: 0 };
    this._held = h("p", { class: "bad text", role: "status" });
    this._more = h("p", { class: "muted" });
    this._apply = h("span");
    this._all = h("input", {
      type: "checkbox", onchange: () => this._table.select(this._all.checked ? this._answer.orphans.map(nameOf) : []),
    });
    this._table = new Table({
      label: "Orphans", columns: this._columns(), keyOf: nameOf, empty: "There is no garbage.",
      selected: () => this._update(),
    });
    this.element = h("div", {}, this._held,
      h("div", { class: "bar-of-tools" }, h("label", { class: "inline" }, this._all, "Select all"), this._apply),
      this._table.element, this._more);
  }

  async load(signal) {
    this._answer = await get("/api/garbage", { controller: this._controller }, signal);
    const { orphans, refused, more } = this._answer;
    const held = refused ? `Garbage collection is held: ${shown(refused)}` : "";
    if (this._held.textContent !== held) this._held.textContent = held;
    replace(this._more, more ? `${counted(more, "more object")} were not checked.` : null);
    this._table.update(orphans);
    return this._answer;
  }

  _columns() {
    return [
      { name: "object", label: "Object", heads: true, kind: "text", value: nameOf },
      { name: "owner", label: "Owner", kind: "text", value: (orphan) => orphan.owner },
      { name: "reason", label: "Reason", kind: "text wide", value: (orphan) => orphan.reason },
      {
        name: "state", label: "State", kind: "text", value: (orphan) => [orphan.held, orphan.due],
        draw: (orphan) => (orphan.held ? `held: ${shown(orphan.held)}` : orphan.due ? "due" : `in its grace period for ${duration(orphan.suspected_s)}`),
      },
      { name: "revision", label: "Revision", kind: "number", value: (orphan) => count(orphan.revision) },
    ];
  }

  _update() {
    const { size } = this._table.selected;
    this._all.checked = size > 0 && size === this._answer.orphans.length;
    const apply = button(size ? `Apply for ${counted(size, "object")}` : "Apply", () => this._collect(), this._answer.off);
    apply.classList.add("danger");
    apply.disabled = size === 0;
    replace(this._apply, apply);
  }

  async _collect() {
    const chosen = this._answer.orphans.filter((orphan) => this._table.selected.has(nameOf(orphan)));
    if (await collect(this._answer, chosen)) this._refresh();
  }
}

function nameOf({ kind, key }) {
  return `${kind}/${key}`;
}
