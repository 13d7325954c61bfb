/** Shows a table of some hundred rows, which are updated in place, sorted and filtered as they are. */

import { arrange, count, h, NOTHING, replace, shown } from "./dom.js";

/**
 * Return a column. `value` decides whether a cell changed, and how rows are sorted. `draw` returns
 * the content of the cell, by default the value as text. `heads` marks the cell that names the row.
 */
export function column(label, value, options = {}) {
  return { name: label, label, value, ...options };
}

export function numbers(label, value, options = {}) {
  return column(label, value, { kind: "number", draw: (row) => count(value(row)), ...options });
}

export class Table {
  /**
   * @param options.label the name of the table for screen readers
   * @param options.empty the text of a table without rows
   * @param options.selected called when the selection changes; without it, no row can be selected
   */
  constructor({ label, columns, keyOf, empty, selected }) {
    this._keyOf = keyOf;
    this._select = selected;
    this.selected = new Set(); // the keys of selected rows
    this._rows = new Map();
    this._list = [];
    this._sort = { name: "", descending: false };
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
    const names = this._columns.map(({ name }) => name).join(" ");
    if (names === this._names) return;
    this._names = names;
    this._rows.clear();
    replace(this._head, h("tr", {}, ...this._columns.map((one) => this._heading(one))));
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

  /** Show only the rows that have this text in a cell. */
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
    const sorted = this._columns.find(({ name }) => name === this._sort.name);
    let list = this._list.filter((data) => !this._filter ||
      this._rows.get(this._keyOf(data)).element.textContent.toLowerCase().includes(this._filter));
    if (sorted) {
      const text = (data) => String(sorted.value(data) ?? "");
      list = list.toSorted((a, b) => text(a).localeCompare(text(b), "en", { numeric: true }));
      if (this._sort.descending) list.reverse();
    }
    arrange(this._body, list.map((data) => this._rows.get(this._keyOf(data)).element));
  }

  _heading({ name, label, kind, sorts }) {
    const text = h("span", { class: kind === "select" ? "hidden" : null }, label);
    const cell = h("th", { scope: "col", class: kind }, text);
    if (!sorts) return cell;
    const sort = () => {
      const descending = this._sort.name === name && !this._sort.descending;
      this._sort = { name, descending };
      for (const other of this._head.querySelectorAll("[aria-sort]")) other.removeAttribute("aria-sort");
      cell.setAttribute("aria-sort", descending ? "descending" : "ascending");
      this._arrange();
    };
    replace(cell, h("button", { type: "button", class: "plain", title: "Sort this page", onclick: sort }, text));
    return cell;
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
