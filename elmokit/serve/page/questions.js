// Requests of the page, whether the server or an engine in the browser answers (`server.js` on the documentation site).

/** A reported problem, or a missing answer. The message is empty if a token has not been entered yet. */
export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const MAX_ANSWERS = 60;

/**
 * Cache the last answers.
 * @param {function(string, Object=): Promise<Object>} request Returns the answer to a path and a body.
 * @returns {{ask: function(string, Object=): Promise<Object>, forget: function(): void}} `ask` is `request` with
 *   a cache; `forget` drops all answers, including pending ones.
 */
export function keepAnswers(request) {
  const answers = new Map();
  const ask = (path, body) => {
    const key = path + JSON.stringify(body);
    if (!answers.has(key)) {
      const answer = request(path, body);
      answers.set(key, answer);
      answer.catch(() => answers.get(key) === answer && answers.delete(key));
      if (answers.size > MAX_ANSWERS) answers.delete(answers.keys().next().value);
    }
    return answers.get(key);
  };
  return { ask, forget: () => answers.clear() };
}

/**
 * Return the tokens of a text, its `sentences`, and the vectors: `layers[layer][token]` is a Float32Array.
 * @param {{tokens: string[], sentence_lengths: number[], shape: number[]}} text The shape is (layers, tokens, dimensions).
 * @param {Float32Array} numbers
 */
export function vectorsByLayer({ tokens, sentence_lengths: lengths, shape: [nLayers, nTokens, dim] }, numbers) {
  let start = 0;
  const sentences = lengths.map((length) => tokens.slice(start, (start += length)));
  const row = (layer, token) => numbers.subarray((layer * nTokens + token) * dim, (layer * nTokens + token + 1) * dim);
  return { tokens, sentences, layers: Array.from({ length: nLayers }, (_, layer) => tokens.map((_, token) => row(layer, token))) };
}
