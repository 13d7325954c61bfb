/**
 * Shows a table of any length: it loads and draws only the rows near those that are visible.
 *
 * Guarantees: at most `visible + 2 * AROUND` rows are in the document. A refresh keeps the active
 * row, the selected rows, and the rows in view, even if rows before them come or go.
 */

import { arrange, h, replace } from "../dom.js";
import { count, shown } from "../format.js";
import { heading, headings, Row } from "./rows.js";

const PAGE = 100; // rows of one request
const PAGES_MAX = 12; // that are kept
const AROUND = 10; // rows drawn before and after the visible ones
const HEIGHT_MAX = 16_000_000; // pixels that browsers can scroll
const SETTLE_MS = 60;
const LIMIT_MS = 30_000;

/** Return the pages that have the rows from *first* to *last*. */
function pagesOf(first, last) {
  const [from, to] = [Math.floor(first / PAGE), Math.floor(last / PAGE)];
  return Array.from({ length: Math.max(0, to - from + 1) }, (_, index) => from + index);
}

/** Return whether one of the pages has the row of *key*. */
function includes(answers, key) {
  return answers.some(([, { rows }]) => rows.some((row) => row.key === key));
}

/** A table whose rows have the field `key`. */
export class BigTable {
  /**
   * @param {object} options
   * @param {string} options.label
   * @param {(offset: number, limit: number, signal: AbortSignal) =>
   *   Promise<{rows: any[], total: number}>} options.load
   * @param {(sort: string) => void} options.onSort
   * @param {(offset: number) => void} options.onScroll
   * @param {() => void} options.onSelect
   */
  constructor({ label, load, onSort, onScroll, onSelect }) {
    this._load = load;
    this._onSort = onSort;
    this._onScroll = onScroll;
    this._onSelect = onSelect;
    /** @type {Map<number, any[]>} */
    this._pages = new Map();
    this._matched = 0;
    this._offset = 0; // of the next refresh
    this._sort = "";
    this._columnNames = "";
    /** @type {Map<string, Row>} */
    this._rows = new Map();
    /** @type {Set<string>} */
    this.selected = new Set();
    this._active = { key: "", index: -1 };
    this._build(label);
  }

  /** The selected keys, or the active one if none is selected. */
  get chosen() {
    if (this.selected.size) return [...this.selected];
    return this._active.key ? [this._active.key] : [];
  }

  /**
   * Set the columns.
   *
   * @param {import("./rows.js").Column[]} columns
   * @param {string} sort the name of the column that orders the rows, after `-` if descending
   */
  setColumns(columns, sort) {
    const names = JSON.stringify([columns.map((column) => column.name), sort]);
    if (names === this._columnNames) return;
    this._columnNames = names;
    this._sort = sort;
    this._columns = [this._selectColumn(), ...columns];
    this._rows.clear();
    replace(this._head, headings(this._columns, (column) => this._heading(column)));
    for (const cell of this._head.querySelectorAll("th")) {
      const name = cell.dataset.column;
      if (name === sort.replace(/^-/, "")) {
        cell.setAttribute("aria-sort", sort.startsWith("-") ? "descending" : "ascending");
      }
    }
  }

  /**
   * Load the rows in view again.
   *
   * @param {AbortSignal} signal
   */
  async refresh(signal) {
    const anchor = this._anchor();
    const offset = this._offset;
    const pages = offset ? [Math.floor(offset / PAGE)] : this._visiblePages();
    const answers = await this._loadPages(pages, signal);
    if (!offset && anchor.key !== undefined && !includes(answers, anchor.key)) {
      answers.push(...(await this._loadPages(this._pagesPassed(anchor.index, answers), signal)));
    }
    this._pages.clear();
    for (const [page, { rows, total }] of answers) this._keep(page, rows, total);
    this._hold(anchor);
    if (offset) this._scroller.scrollTop = offset * this._stride();
    if (offset === this._offset) this._offset = 0;
    this._paint();
  }

  /**
   * Show the row at *offset* first after the next refresh; the present rows stay until then.
   *
   * @param {number} offset
   */
  reset(offset = 0) {
    this._offset = offset;
    this._scroller.scrollTop = 0;
  }

  /**
   * Make the next or previous row the active one.
   *
   * @param {number} step
   */
  move(step) {
    const index = Math.min(this._matched - 1, Math.max(0, this._active.index + step));
    if (index < 0) return;
    this._activate(index);
    this._reveal(index);
    this._table.focus({ preventScroll: true });
  }

  _build(label) {
    this._head = h("thead");
    this._body = h("tbody");
    this._table = h("table", {
      role: "grid", "aria-label": label, tabindex: 0, "aria-multiselectable": "true",
      onkeydown: (event) => this._press(event),
    }, this._head, this._body);
    this._space = h("div", { class: "space" }, this._table);
    this._scroller = h("div", { class: "scroller big", onscroll: () => this._scrolled() }, this._space);
    this._empty = h("p", { class: "empty", hidden: true }, "No key matches.");
    this.element = h("div", { class: "big-table" }, this._scroller, this._empty);
    this._observer = new ResizeObserver(() => this._scrolled());
    this._observer.observe(this._scroller);
  }

  /** Return each page with its answer. */
  async _loadPages(pages, signal) {
    return Promise.all(pages.map(async (page) => [page, await this._load(page * PAGE, PAGE, signal)]));
  }

  _keep(page, rows, total) {
    this._matched = total;
    this._pages.delete(page);
    this._pages.set(page, rows);
    if (this._pages.size > PAGES_MAX) this._pages.delete(this._pages.keys().next().value);
  }

  _at(index) {
    return this._pages.get(Math.floor(index / PAGE))?.[index % PAGE];
  }

  _find(key) {
    for (const [page, rows] of this._pages) {
      const index = rows.findIndex((row) => row.key === key);
      if (index >= 0) return page * PAGE + index;
    }
    return -1;
  }

  // Positions of rows

  /** Return whole pixels, because browsers round the position of scrolled elements. */
  _rowHeight() {
    return Math.round(2.25 * Number.parseFloat(getComputedStyle(document.documentElement).fontSize));
  }

  /** The pixels of one row in the scroll bar; fewer than `_rowHeight` in a very long table. */
  _stride() {
    return Math.min(this._rowHeight(), HEIGHT_MAX / Math.max(1, this._matched));
  }

  _first() {
    return Math.max(0, Math.floor(this._scroller.scrollTop / this._stride()));
  }

  _visible() {
    return Math.ceil(this._scroller.clientHeight / this._rowHeight()) + 1;
  }

  _window() {
    const first = this._first();
    const end = Math.min(this._matched, first + this._visible() + AROUND);
    return [Math.max(0, Math.min(first, end) - AROUND), end];
  }

  _visiblePages() {
    const first = this._first();
    const last = Math.max(first, Math.min(this._matched, first + this._visible()) - 1);
    return pagesOf(first, last);
  }

  /** Return the pages that the row at *index* may have moved to, except those in *answers*. */
  _pagesPassed(index, answers) {
    const total = answers[0][1].total;
    const moved = index + total - this._matched;
    const first = Math.max(0, Math.min(index, moved) - this._visible());
    const last = Math.min(total, Math.max(index, moved) + this._visible()) - 1;
    const loaded = new Set(answers.map(([page]) => page));
    return pagesOf(first, last).filter((page) => !loaded.has(page)).slice(-PAGES_MAX / 2);
  }

  _anchor() {
    const index = this._first();
    return { index, key: index > 0 ? this._at(index)?.key : undefined };
  }

  _hold(anchor) {
    this._resize();
    const index = anchor.key === undefined ? -1 : this._find(anchor.key);
    if (index >= 0 && index !== anchor.index) {
      this._scroller.scrollTop += (index - anchor.index) * this._stride();
    }
    const active = this._find(this._active.key);
    if (active >= 0) this._active.index = active;
  }

  _resize() {
    this._space.style.setProperty("--row", `${this._rowHeight()}px`);
    const height = this._matched * this._stride() + this._rowHeight() * 1.5;
    this._space.style.setProperty("height", `${height}px`);
    this._table.setAttribute("aria-rowcount", String(this._matched + 1));
  }

  // Drawing

  _paint() {
    if (!this._columns) return;
    const [first, end] = this._window();
    const rows = new Map();
    const elements = [];
    for (let index = first; index < end; index += 1) {
      const data = this._at(index);
      const key = data === undefined ? `\u0000${index}` : data.key;
      const row = this._rows.get(key) ?? new Row(data === undefined ? [] : this._columns);
      this._draw(row, data, index);
      rows.set(key, row);
      elements.push(row.element);
    }
    this._rows = rows;
    arrange(this._body, elements);
    this._table.style.setProperty("top", `${Math.round(first * this._stride())}px`);
    this._empty.hidden = this._matched > 0;
    this._mark();
  }

  _draw(row, data, index) {
    const element = row.element;
    element.setAttribute("aria-rowindex", String(index + 2));
    element.dataset.index = String(index);
    if (data === undefined) {
      if (!element.firstChild) element.append(h("td", { colspan: this._columns.length }, "…"));
      return;
    }
    row.update(data);
    element.id = `row-${index}`;
    element.dataset.key = data.key;
    element.dataset.state = data.state ?? "";
    element.setAttribute("aria-selected", String(this.selected.has(data.key)));
    const box = element.querySelector("input");
    if (box) box.checked = this.selected.has(data.key);
  }

  _mark() {
    const { key } = this._active;
    let id = "";
    for (const element of this._body.children) {
      const isActive = key !== "" && element.dataset.key === key;
      element.classList.toggle("active", isActive);
      if (isActive) id = element.id;
    }
    if (id) this._table.setAttribute("aria-activedescendant", id);
    else this._table.removeAttribute("aria-activedescendant");
  }

  // Actions of the user

  _scrolled() {
    if (this._frame) return;
    this._frame = requestAnimationFrame(() => {
      this._frame = 0;
      this._paint();
      this._onScroll(this._first());
      clearTimeout(this._settle);
      this._settle = setTimeout(() => this._loadMissing(), SETTLE_MS);
    });
  }

  async _loadMissing() {
    if (!this._columns) return; // the first answer is not there yet
    const page = this._visiblePages().find((number) => !this._pages.has(number));
    if (page === undefined || this._matched === 0) return;
    try {
      const { rows, total } = await this._load(page * PAGE, PAGE, AbortSignal.timeout(LIMIT_MS));
      this._keep(page, rows, total);
    } catch {
      return; // the next refresh reports the error
    }
    this._resize();
    this._paint();
    await this._loadMissing();
  }

  _press(event) {
    const steps = {
      ArrowDown: 1, ArrowUp: -1, PageDown: this._visible() - 2, PageUp: 2 - this._visible(),
      Home: -this._matched, End: this._matched,
    };
    if (event.target !== this._table || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in steps) this.move(steps[event.key]);
    else if (event.key === " ") this._toggle(this._active.key);
    else if (event.key === "Enter") this._rowOf(this._active.key)?.querySelector("a")?.click();
    else return;
    event.preventDefault();
  }

  _activate(index) {
    this._active = { key: this._at(index)?.key ?? "", index };
    this._mark();
  }

  _reveal(index) {
    const stride = this._stride();
    const shownRows = this._visible() - 4;
    const first = this._scroller.scrollTop / stride;
    if (index < first) this._scroller.scrollTop = index * stride;
    else if (index > first + shownRows) this._scroller.scrollTop = (index - shownRows) * stride;
    if (!this._active.key) setTimeout(() => this._activate(index), SETTLE_MS * 3);
  }

  _toggle(key) {
    if (!key) return;
    if (!this.selected.delete(key)) this.selected.add(key);
    this._paint();
    this._onSelect();
  }

  _rowOf(key) {
    return [...this._body.children].find((element) => element.dataset.key === key);
  }

  _selectColumn() {
    return {
      name: "select", label: "Select", kind: "select", value: (row) => row.key,
      draw: (row) => h("input", {
        type: "checkbox", tabindex: -1, "aria-label": `Select ${shown(row.key, 80)}`,
        onchange: () => this._toggle(row.key),
      }),
    };
  }

  _heading(column) {
    if (!column.sort) return heading(column);
    const next = this._sort === column.sort ? `-${column.sort}` : column.sort;
    const arrow = { [column.sort]: " ▲", [`-${column.sort}`]: " ▼" }[this._sort] ?? "";
    return h("button", { type: "button", onclick: () => this._onSort(next) },
      column.label, h("span", { "aria-hidden": "true" }, arrow));
  }

  /**
   * Return the text that counts the rows.
   *
   * @param {number} all the rows that a search leaves out as well
   */
  summary(all) {
    const matched = `${count(this._matched)} of ${count(all)} keys`;
    return this.selected.size ? `${matched}, ${count(this.selected.size)} selected` : matched;
  }
}
