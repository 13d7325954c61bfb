/** Draws a series of numbers as a small line. */

import { h, s } from "../dom.js";
import { count, counted, duration } from "../format.js";

const WIDTH = 120;
const HEIGHT = 24;
const PLACES = 60; // the newest number is at the right

/**
 * Return a line of a series.
 *
 * @param {string} noun the counted thing, in the singular
 * @param {number[]} numbers oldest first
 * @param {number} step_s the seconds of each number
 * @param {string} [kind] `bad` for errors
 */
export function sparkline(noun, numbers, step_s, kind = "") {
  const max = Math.max(1, ...numbers);
  const total = numbers.reduce((sum, number) => sum + number, 0);
  const label = `${counted(total, noun)} in ${duration(numbers.length * step_s)}, ` +
    `at most ${count(Math.max(0, ...numbers))} in ${duration(step_s)}`;
  const places = numbers.length === 1 ? [numbers[0], numbers[0]] : numbers;
  const points = places.map((number, index) => {
    const x = WIDTH * (1 - (places.length - 1 - index) / (PLACES - 1));
    const y = HEIGHT - 2 - (number / max) * (HEIGHT - 4);
    return `${x.toFixed(1)},${y.toFixed(1)}`;
  });
  const line = s("polyline", { points: points.join(" "), "vector-effect": "non-scaling-stroke" });
  const picture = s("svg", {
    class: `sparkline ${total ? kind : "none"}`, role: "img", "aria-label": label,
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none",
  }, s("title", {}, label), line);
  return h("span", { class: "spark" }, picture, h("span", { class: "sum" }, count(total)));
}
