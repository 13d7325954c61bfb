/** Draws the row of a table, and changes only the cells whose values change. */

import { h, replace } from "../dom.js";
import { shown } from "../format.js";

/**
 * A column of a table. `value` decides whether a cell changed. `draw` returns the content of the
 * cell; without it, the content is the value as text. `heads` marks the cell that names the row.
 *
 * @typedef {{name: string, label: string, value: (row: any) => unknown, kind?: string,
 *   draw?: (row: any) => import("../dom.js").Child, heads?: boolean, sort?: string}} Column
 */

/** The element of one row. */
export class Row {
  /** @param {Column[]} columns */
  constructor(columns) {
    this._columns = columns;
    this._cells = columns.map((column) => cell(column));
    this._values = columns.map(() => undefined);
    this.element = h("tr", {}, ...this._cells);
  }

  /**
   * Draw the row with new data.
   *
   * @param {any} data
   */
  update(data) {
    this._columns.forEach((column, index) => {
      const value = JSON.stringify(column.value(data) ?? null);
      if (value === this._values[index]) return;
      this._values[index] = value;
      replace(this._cells[index], column.draw ? column.draw(data) : shown(column.value(data) ?? "–"));
    });
  }
}

/**
 * Return the row of headings.
 *
 * @param {Column[]} columns
 * @param {(column: Column) => import("../dom.js").Child} draw returns the content of a heading
 */
export function headings(columns, draw = heading) {
  const cells = columns.map((column) =>
    h("th", { scope: "col", class: column.kind, "data-column": column.name }, draw(column)));
  return h("tr", {}, ...cells);
}

/**
 * Return the content of the heading of a column. The heading of boxes is for screen readers only.
 *
 * @param {Column} column
 */
export function heading({ kind, label }) {
  return h("span", { class: kind === "select" ? "hidden" : null }, label);
}

function cell({ heads, kind }) {
  return heads ? h("th", { scope: "row", class: kind }) : h("td", { class: kind });
}
