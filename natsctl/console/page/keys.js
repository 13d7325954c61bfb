/** Shows the keys of a controller or a bucket in their order, a page at a time. */

import { button, pause, resume, resync } from "./actions.js";
import { field } from "./dialog.js";
import { badge, count, counted, h, link, once, path, pathOf, pauseText, replace, setText, shown } from "./dom.js";
import { get, withQuery } from "./server.js";
import { column, Table } from "./table.js";

const TYPING_MS = 200;
const STATES = ["failing", "invalid", "quarantined", "paused"];

export class Keys {
  constructor(route, refresh) {
    this.title = shown(route.controller ?? route.bucket, 80);
    this.live = { view: "keys", controller: route.controller, bucket: route.bucket };
    this._route = route;
    this._refresh = refresh;
    this._prefix = this._search("prefix", (prefix) => this._changed({ prefix }));
    this._filter = this._search("filter", (text) => this._table.filter(text));
    this._states = h("nav", { class: "states", "aria-label": "States" });
    this._note = h("p", { class: "muted", role: "status" });
    this._buttons = h("div", { class: "bar-of-tools" });
    this._pages = h("nav", { class: "pages", "aria-label": "Pages" });
    this._table = new Table({
      label: "Keys", columns: [], keyOf: (row) => row.key, empty: "No key matches.",
      selected: route.controller === undefined ? undefined : () => this._drawButtons(),
    });
    this.element = h("div", { class: "keys" },
      h("div", { class: "bar-of-tools", role: "search" },
        field("Keys that begin with", this._prefix), field("Filter this page", this._filter), this._states),
      this._buttons, this._note, this._table.element, this._pages);
    this._read(route.query);
  }

  async load(signal) {
    const { controller, bucket } = this._route;
    this._answer = await get("/api/keys", { controller, bucket, ...this._query }, signal);
    this._draw();
    return this._answer;
  }

  moved(query) {
    this._read(query);
    this._table.selected.clear();
    this._refresh();
  }

  resync() {
    const active = document.activeElement?.closest("tbody tr")?.querySelector("input")?.dataset.key;
    const keys = this._table.selected.size ? [...this._table.selected] : [active].filter(Boolean);
    if (keys.length && this._route.controller !== undefined) resync({ controller: this._route.controller, keys });
  }

  _read(query) {
    this._query = Object.fromEntries(
      ["prefix", "state", "cause", "offset"].map((name) => [name, query.get(name) ?? ""]));
    if (document.activeElement !== this._prefix) this._prefix.value = this._query.prefix;
  }

  _path(query) {
    return withQuery(pathOf(this._route), { ...this._query, offset: "", ...query });
  }

  _changed(query) {
    history.replaceState(null, "", this._path(query));
    this.moved(new URLSearchParams(location.search));
  }

  _draw() {
    const { rows, states, total, offset, next, note } = this._answer;
    const { state, cause } = this._query;
    this._table.setColumns(this._columns());
    this._table.update(rows);
    const chip = (label, name, number) => h("a", {
      href: this._path({ state: name, cause: "" }), class: "chip", "aria-current": state === name ? "true" : null,
    }, label, number !== undefined && h("span", { class: number ? "sum" : "muted" }, ` ${count(number)}`));
    if (this._route.controller !== undefined) {
      once(this._states, [this._query, states], () => replace(this._states,
        chip("All", ""), ...STATES.map((name) => chip(name, name, states[name])),
        cause && h("a", { href: this._path({ cause: "" }), class: "chip text", title: "Show every cause" }, `${shown(cause, 80)} ×`)));
    }
    const place = total ? `${count(offset + 1)}-${count(next ?? total)} of ${counted(total, "key")}` : counted(0, "key");
    setText(this._note, note ? `${place}; ${note}` : place);
    const page = (label, to) => h("a", { class: "button", href: this._path({ offset: to }) }, label);
    once(this._pages, [this._query, offset, next], () => replace(this._pages,
      offset > 0 && page("Previous page", Math.max(0, offset - 100)), next !== null && page("Next page", next)));
  }

  _columns() {
    const key = column("Key", (row) => row.key, {
      heads: true, kind: "text", draw: (row) => link(pathOf(this._route, row.key), row.key, 200),
    });
    const state = column("State", (row) => [row.state, row.reason], {
      kind: "wide",
      draw: (row) => h("span", { class: "badges" }, badge(row.state),
        row.reason && h("span", { class: "text" }, ...(row.state === "paused" ? pauseText(row.reason) : [shown(row.reason, 200)]))),
    });
    const others = this._answer.columns.map((name, index) => column(
      name.charAt(0) + name.slice(1).toLowerCase(), (row) => row.cells[index] ?? "", { kind: "text" }));
    return [key, ...(this._route.controller === undefined ? [] : [state]), ...others.filter(({ label }) => label !== "Key")];
  }

  /** Show which keys the buttons act on: the selected ones, those of the filter, or all. */
  _drawButtons() {
    const { state, cause, prefix } = this._query;
    const { off, bucket } = this._answer;
    const target = { controller: this._route.controller, bucket };
    let subject = "all keys";
    if (this._table.selected.size) {
      target.keys = [...this._table.selected];
      subject = counted(this._table.selected.size, "selected key");
    } else if (state) {
      target.filter = { state, cause, prefix };
      target.count = this._answer.total;
      subject = counted(target.count, `${state} key`);
    }
    const pausing = target.keys || target.filter ? off.pause : off.whole;
    const buttons = [["Resync", resync, off.resync], ["Pause", pause, pausing], ["Resume", resume, pausing]];
    once(this._buttons, [subject, target, off], () => replace(this._buttons,
      h("span", { class: "muted" }, `Act on ${subject}:`),
      ...buttons.map(([label, action, why]) => button(label, () => action(target), why)),
      h("a", { href: path("garbage", target.controller), class: "button" }, "Garbage")));
  }

  _search(name, changed) {
    let typing;
    return h("input", {
      type: "search", name, autocomplete: "off", spellcheck: "false", placeholder: name === "prefix" ? "/" : null,
      oninput: ({ target }) => {
        clearTimeout(typing);
        typing = setTimeout(() => changed(target.value.trim()), TYPING_MS);
      },
    });
  }
}
