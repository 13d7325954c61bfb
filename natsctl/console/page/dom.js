/** Makes elements, and formats for people. No function takes HTML: the text of an object never becomes markup. */

const TEXT_MAX = 400;
const UNITS = [["d", 86_400], ["h", 3_600], ["m", 60], ["s", 1]];
const UNSAFE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
const BADGES = {
  bad: ["not ready", "failing", "invalid", "Invalid", "Missing", "quarantined", "conflict", "down", "no answer"],
  warn: ["paused", "stopping", "starting", "listing", "joining", "dry-run", "Warning"],
};
export const NOTHING = "-";

export const path = (...parts) => parts.map((part) => `/${encodeURIComponent(part)}`).join("");

/** Return the path of the keys of a controller or a bucket, or of one *key* of them, which may contain slashes. */
export function pathOf({ controller, bucket }, key) {
  const parts = key === undefined ? [] : [key];
  return bucket === undefined ? path(parts.length ? "key" : "keys", controller, ...parts) : path("buckets", bucket, ...parts);
}

/** Return a new element. A function listens to `on…`; an attribute that is null, undefined or false is left out. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, String(value));
  }
  replace(element, ...children);
  return element;
}

/** Replace the children of an element; null, undefined and false are none. */
export function replace(element, ...children) {
  element.replaceChildren(...children.filter((child) => child !== null && child !== undefined && child !== false));
}

/** Draw an element only if its data changed, so that it keeps the focus and what was opened. */
export function once(element, data, draw) {
  const text = JSON.stringify(data);
  if (element.drawn !== text) draw();
  element.drawn = text;
}

/** Change a text only if it differs, because a screen reader reads each change. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Put only these elements below *parent*, in this order; one in its place stays there, and keeps the focus. */
export function arrange(parent, elements) {
  const kept = new Set(elements);
  for (const child of [...parent.children]) if (!kept.has(child)) child.remove();
  elements.forEach((element, index) => {
    if (parent.children[index] !== element) parent.insertBefore(element, parent.children[index] ?? null);
  });
}

/** Return a text of an object, cut; characters that are invisible or change its direction are shown by their code. */
export function shown(text, max = TEXT_MAX) {
  const whole = String(text);
  const start = whole.slice(0, max).replace(UNSAFE, (character) =>
    `⟨${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
  return whole.length > max ? `${start}… (${count(whole.length)} characters)` : start;
}

export function count(number) {
  return number === null || number === undefined ? NOTHING : number.toLocaleString("en");
}

export function counted(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/** Return a duration in seconds as the commands show it, such as `350ms`, `1.2s`, `2m6s` and `12h`. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NOTHING;
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)}ms`;
  return seconds < 9.95 ? `${Number(seconds.toFixed(1))}s` : whole(seconds);
}

function whole(seconds) {
  const at = Math.max(0, UNITS.findIndex(([, size]) => seconds >= size));
  if (seconds < 1) return "0s";
  const [[unit, size], [smallUnit, smallSize] = ["", 1]] = UNITS.slice(at);
  const [large, small] = [Math.floor(seconds / size), Math.floor((seconds % size) / smallSize)];
  return `${large}${unit}${smallUnit && large < 10 && small ? `${small}${smallUnit}` : ""}`;
}

/** Return an element that shows how long ago a time (RFC 3339) is; `refreshAges` keeps it current. */
export function age(time) {
  if (!time || Number.isNaN(Date.parse(time))) return h("span", {}, NOTHING);
  const element = h("time", { datetime: time, title: new Date(time).toLocaleString("sv"), class: "age" });
  drawAge(element);
  return element;
}

/** Return the parts of a text about a pause: its times are ages, as everywhere on the page. */
export function pauseText(text) {
  const parts = shown(text).split(/\b(since|until) (\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d))/);
  return parts.map((part, index) => [part, { since: "for ", until: "ends " }[part] ?? "", age(part)][index % 3]);
}

export function refreshAges() {
  for (const element of document.querySelectorAll("time.age")) drawAge(element);
}

function drawAge(element) {
  const seconds = (Date.now() - Date.parse(element.getAttribute("datetime"))) / 1000;
  setText(element, seconds < 0 ? `in ${whole(-seconds)}` : whole(seconds));
}

export function link(href, text, max = 80) {
  return h("a", { href, class: "text" }, shown(text, max));
}

/** Return a state as a word with a colour; null for an unknown state. What is well is quiet. */
export function badge(state, reason) {
  if (!state || state === "-" || state === "Unknown") return null;
  const kind = Object.keys(BADGES).find((name) => BADGES[name].includes(state)) ?? "plain";
  return h("span", { class: `badge ${kind}`, title: reason ? shown(reason) : null }, shown(state, 60));
}
