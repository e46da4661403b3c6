// The answers of `elmokit serve` that the explorer asks for, with the same fields, from a model in this program.

import { NeighborIndex, tokenize } from "./elmokit/index.js";

const MAX_EXPECTED_TOKENS = 4096; // as on the server: their scores of all words would keep the engine busy for minutes
const MAX_TOKENS = 16384;

/** A question that has no answer, with the status that the server gives it. */
export class Problem extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Answers by the paths of the server. */
export class Answers {
  #index = null;

  /**
   * @param {import("../src/elmo.js").Elmo} elmo
   * @param {string} name The model's.
   * @param {{listed: Object, indexed: string[]}} examples What the page lists, and the sentences to find neighbors in.
   */
  constructor(elmo, name, examples) {
    this.elmo = elmo;
    this.name = name;
    this.listed = examples.listed;
    this.indexed = examples.indexed.map((sentence) => sentence.split(" "));
  }

  /** Return the answer to a request of a path. */
  answer(path, body) {
    const answers = {
      "v1/models": () => ({ object: "list", data: [this.#facts()] }),
      "v1/examples": () => this.listed,
      "v1/surprisal": () => this.#surprisal(body),
      "v1/substitutes": () => this.#substitutes(body),
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

  #surprisal({ input, n_expected: nExpected = 0 }) {
    const sentences = this.#sentences(input);
    const { directions } = this.elmo.config;
    const nTokens = count(sentences);
    if (nExpected && nTokens > MAX_EXPECTED_TOKENS) {
      throw new Problem(422, `The text has ${nTokens} tokens, and ${MAX_EXPECTED_TOKENS} are allowed here. Shorten it.`);
    }
    const data = this.elmo.surprisal(sentences, { nExpected }).map(({ tokens, nats, isUnknown, totalNats, expected }, index) => {
      const inner = nats.map((row) => [...row.slice(1, -1)]);
      const byDirection = (values) => Object.fromEntries(directions.map((name, number) => [name, values[number]]));
      return {
        index,
        tokens: tokens.slice(1, -1),
        is_unknown: isUnknown.slice(1, -1),
        ...byDirection(inner),
        ...(inner.length > 1 && { both: inner[0].map((_, at) => (inner[0][at] + inner[1][at]) / 2) }),
        total: byDirection(totalNats),
        ...(expected && {
          expected: Object.fromEntries(
            this.elmo.expectations.map((name) => [name, expected.map((words) => shown(words[name]))]),
          ),
        }),
      };
    });
    return { object: "list", model: this.name, data, usage: usage(sentences) };
  }

  #substitutes({ sentence, position, n = 10 }) {
    const [tokens] = this.#sentences([sentence]);
    checkPosition(position, tokens);
    const words = this.elmo.expectations.map((direction) => [
      direction,
      shown(this.elmo.substitutes(tokens, position, { direction, n })),
    ]);
    const head = { object: "substitutes", model: this.name, tokens, position, token: tokens[position] };
    return { ...head, ...Object.fromEntries(words) };
  }

  #neighbors({ sentence, position, n = 5, layers, among, min_count: minCount }) {
    const [tokens] = this.#sentences([sentence]);
    checkPosition(position, tokens);
    this.#index ??= new NeighborIndex(this.elmo, this.indexed);
    const found = this.#index.neighbors(tokens, position, { n, layers: layers ?? undefined, among, minCount });
    const head = { object: "neighbors", model: this.name, index: "example sentences", tokens, position };
    return { ...head, context_free: found.contextFree, layers: found.layers };
  }

  #tokens({ input, layers = "all" }) {
    const sentences = this.#sentences(input);
    const data = this.elmo.embed(sentences, { layers }).map(({ data: vectors, shape }, index) => ({
      index,
      tokens: sentences[index],
      shape,
      vectors, // numbers, not text: they do not go through a network
    }));
    return { object: "list", model: this.name, layers, data, usage: usage(sentences) };
  }

  /** Split texts into tokens, as the server does. */
  #sentences(texts) {
    const sentences = texts.map((text) => (typeof text === "string" ? tokenize(text) : text));
    const empty = sentences.findIndex((tokens) => !tokens.length);
    if (empty >= 0) throw new Problem(422, `Text ${empty} of input is empty. Leave it out.`);
    if (count(sentences) > MAX_TOKENS) {
      throw new Problem(422, `The text has ${count(sentences)} tokens, and ${MAX_TOKENS} are allowed here. Shorten it.`);
    }
    return sentences;
  }
}

const count = (sentences) => sentences.reduce((sum, tokens) => sum + tokens.length, 0);
const usage = (sentences) => ({ prompt_tokens: count(sentences), total_tokens: count(sentences) });
const shown = (words) => words.map(({ word, probability }) => ({ word, probability }));

function checkPosition(position, tokens) {
  if (position >= 0 && position < tokens.length) return;
  throw new Problem(422, `position is ${position}, but the sentence has ${tokens.length} tokens.`);
}
