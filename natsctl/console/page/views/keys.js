/** Shows the keys of a controller or a bucket, with search, labels and order. */

import { pause, resume, resync } from "../actions.js";
import { get } from "../api.js";
import { h } from "../dom.js";
import { shown } from "../format.js";
import { badge } from "../parts/badge.js";
import { BigTable } from "../parts/big_table.js";
import { keyPath, paths, replaceQuery } from "../router.js";

const TYPING_MS = 200;

/**
 * @param {import("../router.js").Route} route
 * @param {() => void} refresh
 * @returns {import("../app.js").View}
 */
export function keysView(route, refresh) {
  const view = new Keys(route, refresh);
  return {
    title: shown(route.controller ?? route.bucket, 80),
    element: view.element,
    live: { view: "keys", controller: route.controller, bucket: route.bucket },
    load: (signal) => view.load(signal),
    search: () => view.search.focus(),
    move: (step) => view.table.move(step),
    resync: () => view.resync(),
    moved: (query) => view.moved(query),
  };
}

class Keys {
  constructor(route, refresh) {
    this._route = route;
    this._refresh = refresh;
    this._offset = 0;
    this._all = 0;
    this.search = this._field("search", "Search keys", "/");
    this._labels = this._field("labels", "Labels", "app=shop");
    this._count = h("p", { class: "count", role: "status" });
    this.table = new BigTable({
      label: "Keys",
      load: (offset, limit, signal) => this._page(offset, limit, signal),
      onSort: (sort) => this._changed({ sort }),
      onScroll: (offset) => this._remember(offset),
      onSelect: () => this._summarize(),
    });
    this.element = h("div", { class: "keys" },
      h("div", { class: "bar-of-tools", role: "search" }, this.search.closest("label"),
        this._labels.closest("label"), this._count, ...this._buttons()),
      this.table.element);
    this.moved(route.query);
  }

  async load(signal) {
    await this.table.refresh(signal);
    this._summarize();
    return this._answer;
  }

  /** Show another query of this page. */
  moved(query) {
    this._query = {
      search: query.get("search") ?? "", labels: query.get("labels") ?? "", sort: query.get("sort") ?? "",
    };
    this.search.value = this._query.search;
    this._labels.value = this._query.labels;
    this.table.reset(Number(query.get("offset")) || 0);
    this._refresh();
  }

  /** Resync the selected keys, or the active one. */
  resync() {
    const keys = this.table.chosen;
    if (keys.length && this._route.controller !== undefined) resync(this._route.controller, keys);
  }

  async _page(offset, limit, signal) {
    const { search, labels, sort } = this._query;
    const { controller, bucket } = this._route;
    const answer = await get(bucket === undefined ? "/api/keys" : "/api/objects", {
      controller, bucket, offset, limit, search: search || undefined, labels: labels || undefined,
      sort: sort.replace(/^-/, "") || undefined, descending: sort.startsWith("-") ? 1 : undefined,
    }, signal);
    this._answer = answer;
    this._all = answer.keys;
    this.table.setColumns(this._columns(answer), sort || answer.sorts?.[0] || "");
    return answer;
  }

  _columns({ columns, sorts = [] }) {
    const sort = (name) => (sorts.includes(name) ? name : undefined);
    const cells = columns.map((name, index) => ({
      name, label: heading(name), sort: sort(name), kind: "text",
      value: (row) => row.cells[index] ?? "",
    }));
    const key = {
      ...(cells.find((column) => column.name === "KEY") ?? { name: "KEY", label: "Key" }),
      heads: true, kind: "text key", value: (row) => row.key,
      draw: (row) => h("a", { href: keyPath(this._route, row.key), tabindex: -1 }, shown(row.key, 200)),
    };
    const state = {
      name: "STATE", label: "State", kind: "state", sort: sort("STATE"),
      value: (row) => [row.state, row.reason],
      draw: (row) => h("span", { class: "badges" }, badge(row.state, row.reason),
        row.reason && h("span", { class: "text" }, shown(row.reason, 200))),
    };
    const others = cells.filter((column) => column.name !== "KEY");
    return this._route.bucket === undefined ? [key, ...others, state] : [key, ...others];
  }

  _changed(query) {
    this._query = { ...this._query, ...query };
    replaceQuery(this._query);
    this.table.reset();
    this._refresh();
  }

  _remember(offset) {
    if (offset === this._offset) return;
    this._offset = offset;
    clearTimeout(this._remembering); // browsers limit how often the URL may change
    this._remembering = setTimeout(() => {
      if (this.element.isConnected) replaceQuery({ ...this._query, offset });
    }, TYPING_MS);
  }

  _summarize() {
    const notes = [this._answer?.complete === false && "the list still arrives", this._answer?.note];
    const text = [this.table.summary(this._all), ...notes.filter(Boolean)].join("; ");
    if (this._count.textContent !== text) this._count.textContent = text;
  }

  _field(name, label, placeholder) {
    const input = h("input", {
      type: "search", name, placeholder, autocomplete: "off", spellcheck: "false",
      oninput: () => {
        clearTimeout(this._typing);
        this._typing = setTimeout(() => this._changed({ [name]: input.value.trim() }), TYPING_MS);
      },
    });
    h("label", {}, h("span", {}, label), input);
    return input;
  }

  _buttons() {
    const { controller } = this._route;
    if (controller === undefined) return [];
    const button = (label, act) =>
      h("button", { type: "button", onclick: () => act(controller, this.table.chosen) }, label);
    return [
      button("Resync", resync), button("Pause", pause), button("Resume", resume),
      h("a", { href: paths.garbage(controller), class: "button" }, "Garbage"),
    ];
  }
}

function heading(name) {
  return name.charAt(0) + name.slice(1).toLowerCase();
}
