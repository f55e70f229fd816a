/** Calls of the server, with the key, and failures in words. */

import { events } from "./sse.js";

const KEY = "astrai.key";

/** A call that did not succeed. `status` is 0 when the server could not be reached. */
export class ApiFailure extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY) ?? "",
  set(value, keep) {
    sessionStorage.setItem(KEY, value);
    if (keep) localStorage.setItem(KEY, value);
    else localStorage.removeItem(KEY);
  },
};

/** Fetches a path relative to the page, so that a server below a prefix works too. */
export async function call(path, { body, accept, signal, headers } = {}) {
  const token = key.get();
  let response;
  try {
    response = await fetch(path, {
      method: body ? "POST" : "GET",
      body: body && JSON.stringify(body),
      cache: "no-store",
      signal,
      headers: {
        ...(body && { "content-type": "application/json" }),
        ...(accept && { accept }),
        ...(token && { authorization: `Bearer ${token}` }),
        ...headers,
      },
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiFailure("The server can't be reached.");
  }
  if (!response.ok) throw new ApiFailure(await reason(response), response.status);
  return response;
}

export const getJson = async (path, options) => (await call(path, options)).json();

/** The JSON of each event of a chat's stream. */
export async function* streamChat(body, { signal, requestId }) {
  const headers = { "x-request-id": requestId };
  const response = await call("v1/chat/completions", { body, signal, headers });
  let ended = false;
  try {
    for await (const { data } of events(response)) {
      if (data === "[DONE]") {
        ended = true;
        return;
      }
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiFailure(chunk.error.message, 500);
      yield chunk;
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ApiFailure) throw error;
    throw new ApiFailure("The connection was lost.");
  }
  if (!ended) throw new ApiFailure("The connection was lost.");
}

async function reason(response) {
  try {
    const { error, detail } = await response.json();
    return error?.message ?? String(detail);
  } catch {
    return `The server answered with status ${response.status}.`;
  }
}
