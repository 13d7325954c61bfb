/** Shows an object and the objects that it owns as a tree, with the keyboard of trees. */

import { age, badge, counted, h, paths, replace, shown } from "./dom.js";
import { get } from "./server.js";

const READY = { True: "ready", False: "not ready" };

/** A tree of the branches that `natsctl describe -o json` prints. */
export class Tree {
  /** @param {string} controller answers the manifests of objects that have no page */
  constructor(controller) {
    this._controller = controller;
    this._manifests = new Map(); // the open ones, by name
    this._folded = new Set();
    this._drawn = "";
    this.element = h("ul", {
      role: "tree", class: "tree", "aria-label": "Objects", onkeydown: (event) => this._press(event),
    });
  }

  /** Show a tree. The active item and the folded ones stay as they are. */
  update(root) {
    const text = JSON.stringify([root, [...this._manifests]]);
    if (text === this._drawn) return;
    [this._drawn, this._root] = [text, root];
    const active = document.activeElement?.closest("[role=treeitem]")?.dataset.name;
    const hadFocus = this.element.contains(document.activeElement);
    replace(this.element, this._item(root, 1));
    const items = this._items();
    const item = items.find((candidate) => candidate.dataset.name === active) ?? items[0];
    item.tabIndex = 0;
    if (hadFocus) item.focus();
  }

  _item(branch, level) {
    const name = `${branch.kind}/${branch.key}`;
    const text = shown(name, 200);
    const isOpen = this._manifests.has(name);
    const title = branch.bucket
      ? h("a", { href: paths.object(branch.bucket, branch.key), tabindex: -1, class: "text" }, text)
      : h("span", { class: "text" }, text);
    const details = h("span", { class: "details" },
      badge(READY[branch.ready] ?? branch.ready), branch.reason && h("span", { class: "text" }, shown(branch.reason, 200)),
      branch.created && age(branch.created),
      branch.revision !== null && h("span", {}, `revision ${branch.revision}`),
      !branch.bucket && h("button", {
        type: "button", class: "small", tabindex: -1, "aria-expanded": String(isOpen),
        "aria-label": `Manifest of ${text}`, onclick: () => this._toggle(branch, name),
      }, "Manifest"));
    const manifest = isOpen &&
      h("pre", { class: "text", tabindex: 0, role: "region", "aria-label": `Manifest of ${text}` }, this._manifests.get(name));
    const children = (branch.branches ?? []).map((child) => this._item(child, level + 1));
    const more = branch.more > 0 && h("li", { role: "none", class: "muted" }, `and ${counted(branch.more, "more object")}`);
    return h("li", {
      role: "treeitem", tabindex: -1, "aria-level": level, "data-name": name,
      "aria-label": `${text}, ready: ${shown(branch.ready, 40)}`,
      "aria-expanded": children.length ? String(!this._folded.has(name)) : null,
    }, h("div", { class: "node" }, title, details), manifest,
      (children.length > 0 || more) && h("ul", { role: "group" }, ...children, more));
  }

  async _toggle(branch, name) {
    if (!this._manifests.delete(name)) {
      const query = { controller: this._controller, kind: branch.kind, key: branch.key };
      const answer = await get("/api/manifest", query).catch((error) => ({ text: error.message }));
      this._manifests.set(name, shown(answer.text, 100_000));
    }
    this.update(this._root);
  }

  _items() {
    return [...this.element.querySelectorAll("[role=treeitem]")]
      .filter((item) => !item.parentElement.closest("[aria-expanded=false]"));
  }

  _press(event) {
    const item = event.target.closest("[role=treeitem]");
    const items = this._items();
    const at = items.indexOf(item);
    const expanded = item.getAttribute("aria-expanded");
    const next = {
      ArrowDown: items[at + 1], ArrowUp: items[at - 1], Home: items[0], End: items.at(-1),
      ArrowRight: expanded && items[at + 1], ArrowLeft: item.parentElement.closest("[role=treeitem]"),
    };
    if (event.key === "ArrowRight" && expanded === "false") this._fold(item, false);
    else if (event.key === "ArrowLeft" && expanded === "true") this._fold(item, true);
    else if (event.key in next) this._focus(next[event.key]);
    else if (event.key === "Enter") item.querySelector("a, button")?.click();
    else return;
    event.preventDefault();
  }

  _fold(item, isFolded) {
    item.setAttribute("aria-expanded", String(!isFolded));
    if (isFolded) this._folded.add(item.dataset.name);
    else this._folded.delete(item.dataset.name);
  }

  _focus(item) {
    if (!item) return;
    for (const other of this._items()) other.tabIndex = -1;
    item.tabIndex = 0;
    item.focus();
  }
}
