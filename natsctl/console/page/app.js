/** Shows the view of the URL, follows links and keys, and reports the state of the connection. */

import { clearReports, Notice, show } from "./dialog.js";
import { h, refreshAges, replace, setText } from "./dom.js";
import { bucketsView, controllersView, garbageView, homeView, membersView } from "./home.js";
import { Key } from "./key.js";
import { Keys } from "./keys.js";
import { Live } from "./server.js";

const ROUTES = [
  [/^\/$/, homeView, []],
  [/^\/keys\/([^/]+)$/, (...given) => new Keys(...given), ["controller"]],
  [/^\/key\/([^/]+)\/(.+)$/, (...given) => new Key(...given), ["controller", "key"]],
  [/^\/garbage$/, controllersView, []],
  [/^\/garbage\/([^/]+)$/, garbageView, ["controller"]],
  [/^\/members$/, membersView, []],
  [/^\/buckets$/, bucketsView, []],
  [/^\/buckets\/([^/]+)$/, (...given) => new Keys(...given), ["bucket"]],
  [/^\/buckets\/([^/]+)\/(.+)$/, (...given) => new Key(...given), ["bucket", "key"]],
];

const SHORTCUTS = [
  ["/", "search"],
  ["j, k", "next and previous row"],
  ["Enter", "open the row"],
  ["Space", "select the row"],
  ["r", "resync the selected keys, or the key of the page"],
  ["?", "show this help"],
  ["Esc", "close a dialog, or leave the search"],
];

const main = document.getElementById("main");
const pill = document.getElementById("live");
const MOVES = { j: 1, k: -1 };

let present = null; // the path, the view and its `Live`

function open() {
  const path = location.pathname;
  if (present?.path === path && present.view.moved) {
    present.view.moved(new URLSearchParams(location.search));
    return;
  }
  present?.live.close();
  present = null;
  const [pattern, makeView, names] = ROUTES.find(([candidate]) => candidate.test(path)) ?? [];
  if (pattern) {
    const parts = pattern.exec(path).slice(1).map(decoded);
    const route = Object.fromEntries(names.map((name, index) => [name, parts[index]]));
    openView(makeView({ ...route, query: new URLSearchParams(location.search) }, () => present?.live.refresh()));
  } else {
    replace(main, h("h1", {}, "No such page"), h("p", {}, h("a", { href: "/" }, "Home")));
  }
  for (const entry of document.querySelectorAll("nav a")) {
    const start = entry.getAttribute("href");
    if (start === "/" ? path === "/" : path.startsWith(start)) entry.setAttribute("aria-current", "page");
    else entry.removeAttribute("aria-current");
  }
}

/**
 * Show a view: its `title` and its `element`. `live` names the notices of changes that it needs.
 * `load` requests its data, draws it, and returns the answer. It may have a `heading`, which is what
 * an answer makes of the title, `resync` for the keyboard, and `moved` for another query of its path.
 */
function openView(view) {
  const notice = new Notice(view.element);
  const heading = h("h1", { class: "text" }, view.title);
  const title = (text) => {
    setText(heading, text);
    document.title = `${text} · natsctl`;
  };
  title(view.title);
  view.element.classList.add("loading");
  replace(main, heading, notice.element, notice.lastKnown, view.element);
  const load = async (signal) => {
    const answer = await view.load(signal);
    view.element.classList.remove("loading");
    if (view.heading) title(view.heading(answer));
    notice.answered(answer);
  };
  const live = new Live(view.live, load, (error) => notice.failed(error), (state) => {
    pill.dataset.kind = state.kind;
    setText(pill, state.text);
    notice.update({ cut: state.kind === "stale" });
  });
  present = { path: location.pathname, view, live };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function follow(event) {
  const target = event.target instanceof Element ? event.target.closest("a") : null;
  const isPlain = event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey;
  if (!target || !isPlain || target.origin !== location.origin || target.hasAttribute("download")) return;
  if (target.classList.contains("skip")) return;
  event.preventDefault();
  clearReports();
  if (target.href !== location.href) history.pushState(null, "", target.href);
  open();
  if (!target.closest("nav")) main.focus({ preventScroll: true });
}

function move(step) {
  const links = [...main.querySelectorAll("tbody th a, [role=treeitem], .timeline a")];
  const at = links.indexOf(document.activeElement);
  links[at < 0 ? 0 : Math.min(links.length - 1, Math.max(0, at + step))]?.focus();
}

function help() {
  const rows = SHORTCUTS.map(([keys, effect]) =>
    h("tr", {}, h("th", { scope: "row" }, h("kbd", {}, keys)), h("td", {}, effect)));
  show({ title: "Shortcuts", content: h("table", {}, h("tbody", {}, ...rows)) });
}

function press(event) {
  const { key, target } = event;
  const isBox = target instanceof HTMLInputElement && target.type === "checkbox";
  const isField = !isBox && target instanceof Element && target.matches("input, textarea, select");
  if (key === "Escape" && isField) target.blur();
  if (isField || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const box = key === " " ? target.closest?.("tbody tr")?.querySelector("input[type=checkbox]") : null;
  if (key in MOVES) move(MOVES[key]);
  else if (key === "/") main.querySelector("input[type=search]")?.focus();
  else if (key === "r") present?.view.resync?.();
  else if (key === "?") help();
  else if (box && !isBox) box.click();
  else return;
  event.preventDefault();
}

document.addEventListener("click", follow);
document.addEventListener("keydown", press);
document.getElementById("help").addEventListener("click", help);
window.addEventListener("popstate", open);
setInterval(refreshAges, 1_000);
open();
