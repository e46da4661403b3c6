// Ask the engine that runs in this browser. The documentation site has this module in the place of `server.js` of
// `elmokit serve`, with the same exports, so that both have the same page.

import { keepAnswers, ServerError, vectorsByLayer } from "./questions.js"; // of `elmokit serve`, too

export { ServerError };

/** What the page waits for when it opens. */
export const LOADING = "Loading the engine and the model, 15 MB\u2026";

/** A server may need a token. This page needs none. */
export const useToken = () => {};

const kept = keepAnswers(request);

/**
 * Return the answer to what would be a request of a server: a path and a body. The last answers are kept.
 * @throws {ServerError} The engine does not start, or the question has a problem.
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

// A worker, so that the page answers to keys and clicks while the engine computes.
const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
const waiting = new Map(); // the functions that end the promise of each question
let nAsked = 0;
let failure; // why the worker has ended; it answers nothing more

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

// Keep the page, the engine and the model for use without a network. Last, because the files that are in the cache of the
// browser by then are not loaded twice.
if ("serviceWorker" in navigator) {
  const keep = () => navigator.serviceWorker.register(new URL("./service-worker.js", import.meta.url));
  ask("v1/models").then(keep).catch(() => {}); // without it, the page works as long as there is a network
}
