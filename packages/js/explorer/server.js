// Send requests to the engine in this browser. On the documentation site, this module replaces the `server.js` of
// `elmokit serve`. It has the same exports, so both have the same page.

import { keepAnswers, ServerError, vectorsByLayer } from "./questions.js"; // also from `elmokit serve`

export { ServerError };

/** The message while the page opens. */
export const LOADING = "Loading the engine and the model, 15 MB\u2026";

/** Unlike a server, this page never needs a token. */
export const useToken = () => {};

const kept = keepAnswers(request);

/**
 * Return the answer to a request: a path and a body. The last answers are cached.
 * @throws {ServerError} The engine does not start, or the request cannot be answered.
 */
export const ask = kept.ask;

/**
 * Return the tokens of each text, its `sentences`, and the vectors: `layers[layer][token]` is a Float32Array.
 * @param {string[]} texts
 */
export async function tokenVectors(texts) {
  const answer = await ask("v1/tokens", { input: texts, layers: "all" });
  return answer.data.map(({ vectors, ...text }) => vectorsByLayer(text, vectors));
}

// A worker, so that the page stays responsive while the engine computes.
const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
const waiting = new Map(); // the functions that settle each request's promise
let nAsked = 0;
let failure; // why the worker has stopped; it no longer answers

function request(path, body) {
  if (failure) return Promise.reject(failure);
  const id = ++nAsked;
  worker.postMessage({ id, path, body });
  return new Promise((resolve, reject) => waiting.set(id, { resolve, reject }));
}

worker.addEventListener("message", ({ data: { id, answer, problem } }) => {
  const { resolve, reject } = waiting.get(id);
  waiting.delete(id);
  if (problem) reject(new ServerError(problem.status, problem.message));
  else resolve(answer);
});
worker.addEventListener("error", (event) => {
  event.preventDefault();
  failure = new ServerError(0, `The engine cannot run here: ${event.message ?? ""}`);
  for (const { reject } of waiting.values()) reject(failure);
  waiting.clear();
});

// Store the page, the engine and the model for offline use. This is done last, so files that are already in the browser's
// cache are not loaded twice.
if ("serviceWorker" in navigator) {
  const keep = () => navigator.serviceWorker.register(new URL("./service-worker.js", import.meta.url));
  ask("v1/models").then(keep).catch(() => {}); // without it, the page only works online
}
