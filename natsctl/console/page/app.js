/** Shows the view of the URL, and the state of its connection. */

import { h, replace } from "./dom.js";
import { refreshAges } from "./format.js";
import { listen, SHORTCUTS } from "./keyboard.js";
import { Live } from "./live.js";
import { show } from "./parts/dialog.js";
import { LastKnown } from "./parts/last_known.js";
import { Notice } from "./parts/notice.js";
import { clearReports } from "./parts/reports.js";
import { routeOf } from "./router.js";
import { bucketsView } from "./views/buckets.js";
import { garbageView } from "./views/garbage.js";
import { homeView } from "./views/home.js";
import { keyView } from "./views/key.js";
import { keysView } from "./views/keys.js";
import { membersView } from "./views/members.js";

/**
 * A view. `live` names the notices of changes that it needs. `load` requests its data, draws it, and
 * returns the answer. `search`, `move` and `resync` are the commands of the keyboard. `moved` shows
 * another query of the same path.
 *
 * @typedef {{title: string, element: HTMLElement, live: Record<string, string | undefined>,
 *   load: (signal: AbortSignal) => Promise<any>, search?: () => void, move?: (step: number) => void,
 *   resync?: () => void, moved?: (query: URLSearchParams) => void}} View
 */

/** @type {Record<string, (route: import("./router.js").Route, refresh: () => void) => View>} */
const VIEWS = {
  home: homeView, keys: keysView, key: keyView, garbage: garbageView, members: membersView,
  buckets: bucketsView,
};

const main = document.getElementById("main");
const pill = document.getElementById("live");

/** @type {{path: string, view: View, live: Live} | null} */
let present = null;

function open() {
  const route = routeOf(location);
  if (present && route && present.path === location.pathname && present.view.moved) {
    present.view.moved(route.query);
    return;
  }
  present?.live.close();
  present = null;
  if (route) openView(route);
  else replace(main, h("h1", {}, "No such page"), h("p", {}, h("a", { href: "/" }, "Home")));
  markNavigation();
}

function openView(route) {
  const view = VIEWS[route.view](route, () => present?.live.refresh());
  const notice = new Notice();
  view.element.classList.add("loading");
  document.title = `${view.title} · natsctl`;
  const last = new LastKnown(view.element);
  replace(main, h("h1", { class: "text" }, view.title), notice.element, last.element, view.element);
  const load = async (signal) => {
    const answer = await view.load(signal);
    view.element.classList.remove("loading");
    notice.answered(answer);
    last.answered(answer);
  };
  const failed = (error) => {
    notice.failed(error);
    last.update({ failed: error !== null });
  };
  const report = (state) => {
    showState(state);
    last.update({ cut: state.kind === "stale" });
  };
  const live = new Live(view.live, load, failed, report);
  present = { path: location.pathname, view, live };
}

function showState({ kind, text }) {
  pill.dataset.kind = kind;
  if (pill.textContent !== text) pill.textContent = text;
}

function markNavigation() {
  for (const link of document.querySelectorAll("nav a")) {
    const path = link.getAttribute("href");
    const isCurrent = path === "/" ? location.pathname === "/" : location.pathname.startsWith(path);
    if (isCurrent) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

function follow(event) {
  const link = event.target instanceof Element ? event.target.closest("a") : null;
  const isPlain = event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey;
  if (!link || !isPlain || link.origin !== location.origin || link.hasAttribute("download")) return;
  if (link.classList.contains("skip")) return;
  event.preventDefault();
  clearReports();
  if (link.href !== location.href) history.pushState(null, "", link.href);
  open();
  if (!link.closest("nav")) main.focus({ preventScroll: true });
}

function move(step) {
  if (present?.view.move) {
    present.view.move(step);
    return;
  }
  const links = [...main.querySelectorAll("tbody a, [role=treeitem], .timeline a")];
  const at = links.indexOf(document.activeElement);
  links[at < 0 ? 0 : Math.min(links.length - 1, Math.max(0, at + step))]?.focus();
}

function help() {
  const rows = SHORTCUTS.map(([keys, effect]) =>
    h("tr", {}, h("th", { scope: "row" }, h("kbd", {}, keys)), h("td", {}, effect)));
  show({ title: "Shortcuts", content: h("table", {}, h("tbody", {}, ...rows)) });
}

function search() {
  if (present?.view.search) present.view.search();
  else main.querySelector("input")?.focus();
}

document.addEventListener("click", follow);
document.getElementById("help").addEventListener("click", help);
window.addEventListener("popstate", open);
listen({ search, move, help, resync: () => present?.view.resync?.() });
setInterval(refreshAges, 1_000);
open();
