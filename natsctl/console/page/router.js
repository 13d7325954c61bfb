/** Maps the path of a URL to a view, and a view to its path. */

const ROUTES = [
  [/^\/$/, "home", []],
  [/^\/keys\/([^/]+)$/, "keys", ["controller"]],
  [/^\/key\/([^/]+)\/(.+)$/, "key", ["controller", "key"]],
  [/^\/garbage$/, "garbage", []],
  [/^\/garbage\/([^/]+)$/, "garbage", ["controller"]],
  [/^\/members$/, "members", []],
  [/^\/buckets$/, "buckets", []],
  [/^\/buckets\/([^/]+)$/, "keys", ["bucket"]],
  [/^\/buckets\/([^/]+)\/(.+)$/, "key", ["bucket", "key"]],
];

/**
 * The view that a URL shows, its part of the path, and its query.
 *
 * @typedef {{view: string, controller?: string, bucket?: string, key?: string,
 *   query: URLSearchParams}} Route
 */

/**
 * Return the route of a URL; null if it has none.
 *
 * @param {URL | Location} url
 * @returns {Route | null}
 */
export function routeOf(url) {
  for (const [pattern, view, names] of ROUTES) {
    const match = pattern.exec(url.pathname);
    if (match) {
      const parts = names.map((name, index) => [name, decoded(match[index + 1])]);
      return { view, ...Object.fromEntries(parts), query: new URLSearchParams(url.search) };
    }
  }
  return null;
}

/** The path of each view. A key may contain slashes. */
export const paths = {
  home: () => "/",
  keys: (controller) => join("keys", controller),
  key: (controller, key) => join("key", controller, key),
  garbage: (controller) => join("garbage", controller),
  bucket: (bucket) => join("buckets", bucket),
  object: (bucket, key) => join("buckets", bucket, key),
};

/**
 * Return the path of the keys of a route's controller or bucket.
 *
 * @param {Route} route
 */
export function listPath(route) {
  return route.bucket === undefined ? paths.keys(route.controller) : paths.bucket(route.bucket);
}

/**
 * Return the path of one key of a route's controller or bucket.
 *
 * @param {Route} route
 * @param {string} key
 */
export function keyPath(route, key) {
  return route.bucket === undefined
    ? paths.key(route.controller, key)
    : paths.object(route.bucket, key);
}

/**
 * Replace the query of the present URL, without a new entry in the history.
 *
 * @param {Record<string, string | number>} query an empty value or 0 is left out
 */
export function replaceQuery(query) {
  const present = Object.entries(query).filter(([, value]) => value);
  const text = new URLSearchParams(present.map(([name, value]) => [name, String(value)])).toString();
  history.replaceState(null, "", location.pathname + (text && `?${text}`));
}

function join(...parts) {
  return parts.map((part) => `/${encodeURIComponent(part)}`).join("");
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
