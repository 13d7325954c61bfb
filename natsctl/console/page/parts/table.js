/** Shows a table of some hundred rows, and updates the rows in place. */

import { arrange, h } from "../dom.js";
import { headings, Row } from "./rows.js";

/** A table whose rows have keys. */
export class Table {
  /**
   * @param {object} options
   * @param {string} options.label the name of the table for screen readers
   * @param {import("./rows.js").Column[]} options.columns
   * @param {(data: any) => string} options.keyOf
   * @param {string} options.empty the text of a table without rows
   */
  constructor({ label, columns, keyOf, empty }) {
    this._columns = columns;
    this._keyOf = keyOf;
    /** @type {Map<string, Row>} */
    this._rows = new Map();
    this._body = h("tbody");
    this._empty = h("p", { class: "empty", hidden: true }, empty);
    const table = h("table", { "aria-label": label }, h("thead", {}, headings(columns)), this._body);
    this._scroller = h("div", { class: "scroller", role: "region", tabindex: 0, "aria-label": label }, table);
    this.element = h("div", {}, this._scroller, this._empty);
  }

  /**
   * Show these rows.
   *
   * @param {any[]} list
   * @param {string} [empty] the text without rows, from now on
   */
  update(list, empty = this._empty.textContent) {
    if (this._empty.textContent !== empty) this._empty.textContent = empty;
    const rows = new Map();
    for (const data of list) {
      const key = this._keyOf(data);
      const row = this._rows.get(key) ?? new Row(this._columns);
      row.update(data);
      rows.set(key, row);
    }
    this._rows = rows;
    arrange(this._body, [...rows.values()].map((row) => row.element));
    this._empty.hidden = list.length > 0;
    this._scroller.hidden = list.length === 0;
  }
}
