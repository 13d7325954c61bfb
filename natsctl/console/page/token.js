/**
 * Keeps the token of the printed URL for this tab.
 *
 * It's in the storage of the tab, which has one origin: a page of another port of this host, which
 * would get a cookie, can't read it. A new tab asks the other tabs of the console.
 */

const NAME = "natsctl-console-token";
const ASK_MS = 500; // for the answer of another tab

const tabs = new BroadcastChannel(NAME); // only pages of this origin hear it

/**
 * Return the token; an empty text if neither this tab nor another one has it.
 *
 * @returns {Promise<string>}
 */
export async function token() {
  if (!kept()) await (asked ??= ask().finally(() => (asked = null)));
  return kept();
}

/**
 * Forget a token that the server refused, in every tab; then one with a newer token answers.
 *
 * @param {string} refused
 */
export function dropToken(refused) {
  if (kept() === refused) sessionStorage.removeItem(NAME);
  if (refused) tabs.postMessage({ refused });
}

/** @type {Promise<void> | null} */
let asked = null;

function ask() {
  return new Promise((done) => {
    const limit = setTimeout(done, ASK_MS);
    const hear = ({ data }) => {
      if (!data.token) return;
      sessionStorage.setItem(NAME, data.token);
      tabs.removeEventListener("message", hear);
      clearTimeout(limit);
      done();
    };
    tabs.addEventListener("message", hear);
    tabs.postMessage({ wanted: true });
  });
}

function kept() {
  return sessionStorage.getItem(NAME) ?? "";
}

/** Take the token out of the URL, so that nobody shares it; return whether there was one. */
function takeFromUrl() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!given) return false;
  sessionStorage.setItem(NAME, given);
  history.replaceState(null, "", location.pathname + location.search);
  return true;
}

tabs.addEventListener("message", ({ data }) => {
  if (data.wanted && kept()) tabs.postMessage({ token: kept() });
  if (data.refused === kept()) sessionStorage.removeItem(NAME);
});
window.addEventListener("hashchange", () => {
  if (takeFromUrl()) location.reload(); // the URL of a new console, opened in the tab of an old one
});
takeFromUrl();
