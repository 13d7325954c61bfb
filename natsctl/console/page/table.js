/** Shows a table of some hundred rows, which are updated in place, sorted and filtered as they are. */

import { arrange, h, NOTHING, replace, shown } from "./dom.js";

/**
 * A column. `value` decides whether a cell changed, and how rows are sorted. `draw` returns the
 * content of the cell; without it, the content is the value as text. `heads` marks the cell that
 * names the row.
 * @typedef {{name: string, label: string, value: (row: any) => unknown, kind?: string, draw?: (row:
 *   any) => import("./dom.js").Child, heads?: boolean, sorts?: boolean}} Column
 */

export class Table {
  /**
   * @param options.label the name of the table for screen readers
   * @param options.empty the text of a table without rows
   */
  constructor({ label, columns, keyOf, empty, selected }) {
    this._keyOf = keyOf;
    this._select = selected; // called when the selection changes; without it, no row can be selected
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
    const box = {
      name: "SELECT", label: "Select", kind: "select", value: this._keyOf,
      draw: (row) => this._box(this._keyOf(row)),
    };
    const columns = this._select ? [box, ...given] : given;
    const names = columns.map(({ name }) => name).join(" ");
    this._columns = columns;
    if (names === this._names) return;
    this._names = names;
    this._rows.clear();
    replace(this._head, h("tr", {}, ...columns.map((column) => this._heading(column))));
  }

  /**
   * Show these rows.
   * @param [empty] the text without rows, from now on
   */
  update(list, empty = this._empty.textContent) {
    this._list = list;
    if (this._empty.textContent !== empty) this._empty.textContent = empty;
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

  _arrange() {
    const column = this._columns.find(({ name }) => name === this._sort.name);
    let list = this._list.filter((data) => !this._filter ||
      this._rows.get(this._keyOf(data)).element.textContent.toLowerCase().includes(this._filter));
    if (column) {
      const text = (data) => String(column.value(data) ?? "");
      list = list.toSorted((a, b) => text(a).localeCompare(text(b), "en", { numeric: true }));
      if (this._sort.descending) list.reverse();
    }
    arrange(this._body, list.map((data) => this._rows.get(this._keyOf(data)).element));
  }

  _heading(column) {
    const { name, label, kind, sorts } = column;
    const text = h("span", { class: kind === "select" ? "hidden" : null }, label);
    const cell = h("th", { scope: "col", class: kind, "data-column": name }, text);
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

  /** Select these rows, and no others. */
  select(keys) {
    this.selected = new Set(keys);
    for (const box of this._body.querySelectorAll("td.select input")) box.checked = this.selected.has(box.dataset.key);
    this._select();
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
    this._columns.forEach((column, index) => {
      const value = JSON.stringify(column.value(data) ?? null);
      if (value === row.values[index]) return;
      row.values[index] = value;
      replace(row.cells[index], column.draw ? column.draw(data) : shown(column.value(data) || NOTHING));
    });
  }
}
