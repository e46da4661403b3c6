// The answers of `elmokit serve` that the explorer requests, with the same fields, computed by a model in the browser.

import { NeighborIndex } from "./elmokit/index.js";
import { sumByWord, textTokens } from "./elmokit/words.js";

const MAX_EXPECTED_TOKENS = 4096; // as on the server: computing the scores of all words for more would take minutes
const MAX_TOKENS = 16384;

/** A request that cannot be answered, with the server's status. */
export class Problem extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Answers requests to the server's paths. */
export class Answers {
  #index = null;

  /**
   * @param {import("../src/elmo.js").Elmo} elmo
   * @param {string} name The model's name.
   * @param {{listed: Object, indexed: string[]}} examples The examples on the page, and the sentences to search for neighbors.
   */
  constructor(elmo, name, examples) {
    this.elmo = elmo;
    this.name = name;
    this.listed = examples.listed;
    this.indexed = examples.indexed.map((sentence) => sentence.split(" "));
  }

  /** Return the answer to a request. */
  answer(path, body) {
    const answers = {
      "v1/models": () => ({ object: "list", data: [this.#facts()] }),
      "v1/examples": () => this.listed,
      "v1/surprisal": () => this.#surprisal(body),
      "v1/neighbors": () => this.#neighbors(body),
      "v1/tokens": () => this.#tokens(body),
    };
    if (!Object.hasOwn(answers, path)) throw new Problem(404, `The explorer in the browser does not answer ${path}.`);
    return answers[path]();
  }

  #facts() {
    const { elmo } = this;
    return {
      id: this.name,
      object: "model",
      created: 0,
      owned_by: "elmokit",
      n_layers: elmo.nLayers,
      dim: elmo.dim,
      directions: elmo.config.directions,
      can_predict: elmo.canPredict,
      mix: null,
      index: {
        name: "example sentences",
        n_sentences: this.indexed.length,
        n_tokens: this.indexed.reduce((sum, tokens) => sum + tokens.length, 0),
      },
    };
  }

  #surprisal({ input, n_expected: nExpected = 0, documents = false, cache = false, words = false }) {
    const texts = this.#texts(input);
    if (cache && !documents) throw new Problem(422, "cache only works with documents. Also send documents: true.");
    const { directions } = this.elmo.config;
    const nTokens = count(texts.flat());
    if (nExpected && nTokens > MAX_EXPECTED_TOKENS) {
      throw new Problem(422, `The text has ${nTokens} tokens, but ${MAX_EXPECTED_TOKENS} are allowed here. Shorten it.`);
    }
    const data = texts.map((text, index) => {
      const scored = documents ? this.elmo.surprisalDocuments([text], { nExpected, cache })[0] : this.elmo.surprisal(text, { nExpected });
      const inner = directions.map((_, number) => scored.flatMap(({ nats }) => [...nats[number].slice(1, -1)]));
      const byDirection = (values) => Object.fromEntries(directions.map((name, number) => [name, values[number]]));
      return {
        index,
        tokens: text.flat(),
        sentence_lengths: lengths(text),
        is_unknown: scored.flatMap(({ isUnknown }) => isUnknown.slice(1, -1)),
        spelling_nats: scored.flatMap(({ spellingNats }) => spellingNats.slice(1, -1)),
        ...byDirection(inner),
        ...(inner.length > 1 && { both: inner[0].map((_, at) => (inner[0][at] + inner[1][at]) / 2) }),
        total: byDirection(directions.map((_, number) => scored.reduce((sum, { totalNats }) => sum + totalNats[number], 0))),
        ...(nExpected && {
          expected: Object.fromEntries(
            this.elmo.expectations.map((name) => [
              name,
              scored.flatMap(({ expected }) => expected.map((words) => shown(words[name]))),
            ]),
          ),
        }),
        ...(words && { words: sumByWord(input[index], textTokens(input[index]), scored, directions).map(wordRow) }),
      };
    });
    return { object: "list", model: this.name, data, usage: usage(texts.flat()) };
  }

  #neighbors({ sentence, position, n = 5, layers, among, min_count: minCount, documents = false }) {
    const [text] = this.#texts([sentence]);
    const tokens = text.flat();
    const place = sentenceAt(text, position);
    this.#index ??= new NeighborIndex(this.elmo, this.indexed);
    const before = documents ? text.slice(0, place.number) : [];
    const found = this.#index.neighbors(text[place.number], place.position, { n, layers: layers ?? undefined, among, minCount, before });
    const head = { object: "neighbors", model: this.name, index: "example sentences", tokens, position };
    return { ...head, context_free: found.contextFree, layers: found.layers };
  }

  #tokens({ input, layers = "all", documents = false }) {
    const texts = this.#texts(input);
    const data = texts.map((text, index) => ({
      index,
      tokens: text.flat(),
      sentence_lengths: lengths(text),
      // Numbers instead of text, because they do not pass through a network.
      ...joined(documents ? this.elmo.embedDocuments([text], { layers })[0] : this.elmo.embed(text, { layers })),
    }));
    return { object: "list", model: this.name, layers, data, usage: usage(texts.flat()) };
  }

  /** Split texts into sentences and tokens, as the server does. */
  #texts(input) {
    const texts = input.map((text) => (typeof text === "string" ? textTokens(text).map((one) => one.map(({ text }) => text)) : [text]));
    const empty = texts.findIndex((text) => !count(text));
    if (empty >= 0) throw new Problem(422, `Text ${empty} of input is empty or has an empty sentence. Remove it.`);
    const nTokens = count(texts.flat());
    if (nTokens > MAX_TOKENS) {
      throw new Problem(422, `The text has ${nTokens} tokens, but ${MAX_TOKENS} are allowed here. Shorten it.`);
    }
    return texts;
  }
}

/** Return the index of a token's sentence, and its position in the sentence, from its position in the text. */
function sentenceAt(text, position) {
  let before = 0;
  for (const [number, tokens] of text.entries()) {
    if (position >= before && position < before + tokens.length) return { number, position: position - before };
    before += tokens.length;
  }
  throw new Problem(422, `position is ${position}, but the text has ${before} tokens.`);
}

/** Join the vectors of sentences, `(layers, tokens, dim)`. */
function joined(sentences) {
  const [nLayers, , dim] = sentences[0].shape;
  const nTokens = sentences.reduce((sum, { shape }) => sum + shape[1], 0);
  const vectors = new Float32Array(nLayers * nTokens * dim);
  let before = 0;
  for (const { data, shape: [, n] } of sentences) {
    for (let layer = 0; layer < nLayers; layer++) {
      vectors.set(data.subarray(layer * n * dim, (layer + 1) * n * dim), (layer * nTokens + before) * dim);
    }
    before += n;
  }
  return { shape: [nLayers, nTokens, dim], vectors };
}

const count = (sentences) => sentences.reduce((sum, tokens) => sum + tokens.length, 0);
const lengths = (text) => text.map((tokens) => tokens.length);
const usage = (sentences) => ({ prompt_tokens: count(sentences), total_tokens: count(sentences) });
const wordRow = ({ word, start, stop, unknown, ...row }) => ({
  sentence_index: row.sentenceIndex,
  word_index: row.wordIndex,
  word,
  start,
  stop,
  forward_nats: row.forwardNats,
  backward_nats: row.backwardNats,
  n_tokens: row.nTokens,
  unknown,
  spelling_nats: row.spellingNats,
});
const shown = (words) => words.map(({ word, probability }) => ({ word, probability }));
