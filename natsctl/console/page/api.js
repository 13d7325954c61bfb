/** Sends requests to the server of the console, each with the token of this tab. */

import { dropToken, token } from "./token.js";

const LIMIT_MS = 30_000;

/**
 * An error that the server answered, or that the way to the server has. `reason` is
 * `refused`, `not_found`, `conflict`, `invalid`, `old_daemon`, `unavailable`, `no_daemon`, `timeout`,
 * `signed_out`, `failed`, or `offline` if there is no answer.
 */
export class ApiError extends Error {
  /**
   * @param {string} reason
   * @param {string} message
   */
  constructor(reason, message) {
    super(message);
    this.reason = reason;
  }
}

/**
 * Return the answer of a path.
 *
 * @param {string} path
 * @param {Record<string, string | number | undefined>} query an undefined value is left out
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export async function get(path, query = {}, signal) {
  return (await request(address(path, query), { signal })).json();
}

/**
 * Request an action.
 *
 * @param {string} action
 * @param {object} body
 * @returns {Promise<any>}
 */
export async function act(action, body) {
  const answer = await request(`/api/actions/${action}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
  return answer.json();
}

/**
 * Return the content and the file name of a download.
 *
 * @param {string} path
 * @param {Record<string, string>} query
 */
export async function download(path, query) {
  const answer = await request(address(path, query), {});
  const name = /filename="?([^";]+)/.exec(answer.headers.get("Content-Disposition") ?? "");
  return { content: await answer.blob(), name: name ? name[1] : "recording.json" };
}

/**
 * Yield the name and the data of each event that the server sends, until it ends the stream.
 *
 * @param {string} path
 * @param {Record<string, string | undefined>} query
 * @param {AbortSignal} signal
 * @returns {AsyncGenerator<[string, any]>}
 */
export async function* events(path, query, signal) {
  const answer = await sent(address(path, query), { signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    const blocks = (text + part.value).split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const [, name, data] = /^event: (.*)\ndata: (.*)$/.exec(block);
      yield [name, JSON.parse(data)];
    }
  }
}

/**
 * Return the path with a query.
 *
 * @param {string} path
 * @param {Record<string, string | number | undefined>} query
 */
function address(path, query) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined);
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return text ? `${path}?${text}` : path;
}

async function request(url, options) {
  const limit = AbortSignal.timeout(LIMIT_MS);
  const signal = options.signal ? AbortSignal.any([options.signal, limit]) : limit;
  try {
    return await sent(url, { ...options, signal });
  } catch (error) {
    if (options.signal?.aborted || error instanceof ApiError) throw error;
    if (limit.aborted) throw new ApiError("timeout", "natsctl console did not answer in 30 s");
    throw new ApiError("offline", "natsctl console does not answer; is the command still running?");
  }
}

async function sent(url, options) {
  const used = await token();
  const headers = { ...options.headers, Authorization: `Bearer ${used}` };
  const answer = await fetch(url, { ...options, headers });
  if (answer.status === 401) dropToken(used);
  if (!answer.ok) throw await errorOf(answer);
  return answer;
}

async function errorOf(answer) {
  try {
    const { error } = await answer.json();
    return new ApiError(error.reason, error.message);
  } catch {
    return new ApiError("failed", `natsctl console answered status ${answer.status}`);
  }
}
