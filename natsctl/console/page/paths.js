/** The path of each view. A key may contain slashes. */

export const paths = {
  keys: (controller) => join("keys", controller),
  key: (controller, key) => join("key", controller, key),
  garbage: (controller) => join("garbage", controller),
  bucket: (bucket) => join("buckets", bucket),
  object: (bucket, key) => join("buckets", bucket, key),
};

/** Return the path of the keys of a route's controller or bucket, or of one *key* of them. */
export function pathOf({ controller, bucket }, key) {
  const place = bucket === undefined ? ["keys", controller] : ["buckets", bucket];
  if (key === undefined) return join(...place);
  return bucket === undefined ? paths.key(controller, key) : paths.object(bucket, key);
}

function join(...parts) {
  return parts.map((part) => `/${encodeURIComponent(part)}`).join("");
}
