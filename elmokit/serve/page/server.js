// Send requests to the server that this page came from.

import { keepAnswers, ServerError, vectorsByLayer } from "./questions.js";

export { ServerError };

/** The message while the page opens. */
export const LOADING = "Waiting for the server\u2026";

const STORED = "elmokit-token";
const kept = keepAnswers(request);

/** Keep the bearer token for requests until the tab is closed. */
export function useToken(token) {
  sessionStorage.setItem(STORED, token);
  kept.forget(); // including pending answers, which belong to another token
}

// What to do about an error. The server's own messages are for programs.
const REMEDIES = {
  413: "This is too long for this server. Please try a shorter text.",
  422: "This is too long for this server. Please try a shorter text.",
  429: "The server is busy. Please try again in a moment.",
  503: "The server could not answer in time. Please try again, or try a shorter text.",
};

/**
 * Return the answer of a path; a `body` is sent as JSON with POST. The last answers are cached.
 * @throws {ServerError} The server does not answer or reports a problem.
 */
export const ask = kept.ask;

async function request(path, body) {
  const headers = { "Content-Type": "application/json" };
  const token = sessionStorage.getItem(STORED);
  if (token) headers.Authorization = `Bearer ${token}`;
  let response;
  try {
    response = await fetch(path, body ? { method: "POST", headers, body: JSON.stringify(body) } : { headers });
  } catch {
    throw new ServerError(0, "The server does not answer. Is it still running?");
  }
  if (response.status === 401) throw new ServerError(401, token ? "The server does not accept this token." : "");
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) {
    const message = REMEDIES[response.status] ?? answer.error?.message ?? `The server answered ${response.status}.`;
    throw new ServerError(response.status, message);
  }
  return answer;
}

/**
 * Return the tokens of each text, its `sentences`, and the vectors: `layers[layer][token]` is a Float32Array.
 * @param {string[]} texts
 */
export async function tokenVectors(texts) {
  const answer = await ask("v1/tokens", { input: texts, layers: "all", encoding_format: "base64" });
  return answer.data.map(({ vectors, ...text }) => {
    const bytes = Uint8Array.from(atob(vectors), (character) => character.charCodeAt(0));
    return vectorsByLayer(text, new Float32Array(bytes.buffer));
  });
}
