/** Shows the buckets of the account. */

import { get } from "../api.js";
import { h } from "../dom.js";
import { count, counted, shown } from "../format.js";
import { Table } from "../parts/table.js";
import { paths } from "../router.js";

/** @returns {import("../app.js").View} */
export function bucketsView() {
  const table = new Table({
    label: "Buckets", columns: COLUMNS, keyOf: (bucket) => bucket.name, empty: "There is no bucket.",
  });
  const more = h("p", { class: "muted" });
  return {
    title: "Buckets",
    element: h("div", {}, table.element, more),
    live: { view: "buckets" },
    async load(signal) {
      const answer = await get("/api/buckets", {}, signal);
      table.update(answer.buckets);
      more.textContent = answer.more ? `${counted(answer.more, "more bucket")}` : "";
      return answer;
    },
  };
}

const COLUMNS = [
  {
    name: "bucket", label: "Bucket", heads: true, value: (bucket) => bucket.name,
    draw: (bucket) => h("a", { href: paths.bucket(bucket.name), class: "text" }, shown(bucket.name, 80)),
  },
  { name: "values", label: "Values", kind: "number", value: (bucket) => count(bucket.values) },
  { name: "bytes", label: "Bytes", kind: "number", value: (bucket) => count(bucket.bytes) },
  { name: "history", label: "History", kind: "number", value: (bucket) => count(bucket.history) },
  {
    name: "controllers", label: "Controllers", value: (bucket) => bucket.controllers,
    draw: (bucket) => h("span", { class: "links" }, ...(bucket.controllers ?? []).map((name) =>
      h("a", { href: paths.keys(name), class: "text" }, shown(name, 80)))),
  },
];
