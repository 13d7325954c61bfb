/** Formats numbers, times and texts of objects for people. */

import { h } from "./dom.js";

const TEXT_MAX = 400;
const UNITS = [["d", 86_400], ["h", 3_600], ["m", 60], ["s", 1]];
const UNSAFE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/**
 * Return a text of an object for display. Control characters and characters that change the
 * direction of the text are shown by their code. A long text is cut.
 *
 * @param {unknown} text
 * @param {number} max
 */
export function shown(text, max = TEXT_MAX) {
  const whole = String(text);
  const start = whole.slice(0, max).replace(UNSAFE, code);
  return whole.length > max ? `${start}… (${count(whole.length)} characters)` : start;
}

/**
 * Return a value as JSON for display, at most *max* characters.
 *
 * @param {unknown} value
 * @param {number} max
 */
export function json(value, max = TEXT_MAX) {
  return shown(JSON.stringify(value, null, 1) ?? "", max);
}

/** @param {number | null | undefined} number */
export function count(number) {
  return number === null || number === undefined ? "–" : number.toLocaleString("en");
}

/**
 * Return the number with its noun, such as `1 key` and `2 keys`.
 *
 * @param {number} number
 * @param {string} noun
 */
export function counted(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/**
 * Return a duration with two digits of precision or more, such as `3.2 ms` and `1h 5m`.
 *
 * @param {number | null | undefined} seconds
 */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.0995) return `${(seconds * 1000).toFixed(seconds < 0.00995 ? 1 : 0)} ms`;
  if (seconds < 59.95) return `${seconds.toFixed(seconds < 9.95 ? 1 : 0)} s`;
  const at = UNITS.findIndex(([, size]) => seconds >= size);
  const [unit, size] = UNITS[at];
  const [small, part] = UNITS[at + 1];
  const rest = Math.floor((seconds % size) / part);
  return `${Math.floor(seconds / size)}${unit}${rest ? ` ${rest}${small}` : ""}`;
}

/**
 * Return an element that shows how long ago a time is; `refreshAges` keeps it current.
 *
 * @param {string} time RFC 3339; empty if it is not known
 */
export function age(time) {
  if (!time || Number.isNaN(Date.parse(time))) return h("span", {}, "–");
  const element = h("time", { datetime: time, title: time, class: "age" });
  drawAge(element);
  return element;
}

/** Refresh the ages on the page. */
export function refreshAges() {
  for (const element of document.querySelectorAll("time.age")) drawAge(element);
}

function drawAge(element) {
  const seconds = (Date.now() - Date.parse(element.getAttribute("datetime"))) / 1000;
  const text = seconds < 0 ? `in ${whole(-seconds)}` : whole(seconds);
  if (element.textContent !== text) element.textContent = text;
}

function whole(seconds) {
  return seconds < 60 ? `${Math.floor(seconds)} s` : duration(seconds);
}

function code(character) {
  return `⟨${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
}
