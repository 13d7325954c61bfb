/** Shows a table of some hundred rows, which are updated in place and filtered as they are. */

import { arrange, count, h, NOTHING, replace, shown } from "./dom.js";

/**
 * Return a column. `value` decides whether a cell changed. `draw` returns the content of the cell, by
 * default the value as text. `heads` marks the cell that names the row.
 */
export function column(label, value, options = {}) {
  return { label, value, ...options };
}

export function numbers(label, value, options = {}) {
  return column(label, value, { kind: "number", draw: (row) => count(value(row)), ...options });
}

export class Table {
  /** `selected` is called when the selection changes; without it, no row can be selected. */
  constructor({ label, columns, keyOf, empty, selected }) {
    this._keyOf = keyOf;
    this._select = selected;
    this.selected = new Set(); // the keys of selected rows
    this._rows = new Map();
    this._list = [];
    this._filter = "";
    this._head = h("thead");
    this._body = h("tbody");
    this._empty = h("p", { class: "empty", hidden: true }, empty);
    this._scroller = h("div", { class: "scroller", role: "region", tabindex: 0, "aria-label": label },
      h("table", { "aria-label": label }, this._head, this._body));
    this.element = h("div", {}, this._scroller, this._empty);
    this.setColumns(columns);
  }

  /** Show other columns; the rows are drawn again if they differ. */
  setColumns(given) {
    const box = column("Select", this._keyOf, { kind: "select", draw: (row) => this._box(this._keyOf(row)) });
    this._columns = this._select ? [box, ...given] : given;
    const labels = this._columns.map(({ label }) => label).join(" ");
    if (labels === this._labels) return;
    this._labels = labels;
    this._rows.clear();
    replace(this._head, h("tr", {}, ...this._columns.map(({ label, kind }) => h("th", { scope: "col", class: kind },
      h("span", { class: kind === "select" ? "hidden" : null }, label)))));
  }

  update(list) {
    this._list = list;
    const rows = new Map();
    for (const data of list) {
      const row = this._rows.get(this._keyOf(data)) ?? this._row();
      this._draw(row, data);
      rows.set(this._keyOf(data), row);
    }
    this._rows = rows;
    this._arrange();
    if (this._select) this.select([...this.selected].filter((key) => rows.has(key)));
    this._empty.hidden = list.length > 0;
    this._scroller.hidden = list.length === 0;
  }

  filter(text) {
    this._filter = text.toLowerCase();
    this._arrange();
  }

  select(keys) {
    this.selected = new Set(keys);
    for (const box of this._body.querySelectorAll("td.select input")) box.checked = this.selected.has(box.dataset.key);
    this._select();
  }

  _arrange() {
    const list = this._list.filter((data) => !this._filter ||
      this._rows.get(this._keyOf(data)).element.textContent.toLowerCase().includes(this._filter));
    arrange(this._body, list.map((data) => this._rows.get(this._keyOf(data)).element));
  }

  _box(key) {
    const toggle = ({ target }) => {
      if (target.checked) this.selected.add(key);
      else this.selected.delete(key);
      this._select();
    };
    return h("input", {
      type: "checkbox", "aria-label": `Select ${shown(key, 80)}`, "data-key": key, onchange: toggle,
    });
  }

  _row() {
    const cells = this._columns.map(({ heads, kind }) =>
      heads ? h("th", { scope: "row", class: kind }) : h("td", { class: kind }));
    return { element: h("tr", {}, ...cells), cells, values: [] };
  }

  _draw(row, data) {
    this._columns.forEach(({ value, draw }, index) => {
      const text = JSON.stringify(value(data) ?? null);
      if (text === row.values[index]) return;
      row.values[index] = text;
      replace(row.cells[index], draw ? draw(data) : shown(value(data) || NOTHING));
    });
  }
}
