// One vector per sentence: a weighted mean of token vectors, which are mapped to length 1 if the model stores a map.

import { MARKS, readCapitals, translate } from "./marks.js";

// The weightings of elmokit/pretrained/pooling_names.py: the weight of a word by its probability. Tokens without a letter or
// digit have none. null: all tokens count equally.
const WEIGHTINGS = {
  mean: null,
  sif: (probability, smoothing) => smoothing / (smoothing + probability),
};
const DEFAULTS = { weighting: "sif", layers: 0, smoothing: 3e-4 };
const TREEBANK_QUOTES = { "``": '"', "''": '"' };
const PLAIN_MARKS = new Map([...MARKS, ["`", "'"]]);
const LETTER_OR_DIGIT = /[\p{L}\p{N}]/u;

const CHECKS = {
  weighting: [(value) => Object.hasOwn(WEIGHTINGS, value), () => `Expected one of ${Object.keys(WEIGHTINGS).join(", ")}.`],
  layers: [
    (value, nLayers) => ["all", "top", "average"].includes(value) || areLayers(Array.isArray(value) ? value : [value], nLayers),
    (nLayers) => `Expected 'all', 'top', 'average', or distinct numbers from 0 to ${nLayers - 1}.`,
  ],
  smoothing: [(value) => Number.isFinite(value) && value > 0, () => "It must be above 0."],
};

function areLayers(layers, nLayers) {
  const exists = (layer) => Number.isInteger(layer) && layer >= 0 && layer < nLayers;
  return layers.length > 0 && layers.every(exists) && new Set(layers).size === layers.length;
}

/**
 * Return the settings in a section of config.json, with defaults for missing ones. Without a section, there is no map, and a
 * model without word frequencies uses plain means, as in Python.
 * @param {Object|undefined} table
 * @param {string} name For error messages.
 * @param {number} nLayers Including layer 0.
 * @param {boolean} hasFrequencies Whether the model has a vocabulary.
 */
export function poolingSettings(table, name, nLayers, hasFrequencies) {
  if (table === undefined) return { ...DEFAULTS, weighting: hasFrequencies ? "sif" : "mean" };
  const wrong = (problem) => new Error(`config.json, ${name}: ${problem} Restore the model's original file.`);
  if (table === null || typeof table !== "object" || Array.isArray(table)) {
    throw wrong(`expected an object, but got ${JSON.stringify(table)}.`);
  }
  for (const [setting, value] of Object.entries(table)) {
    if (!Object.hasOwn(CHECKS, setting)) throw wrong(`there is no setting ${setting}.`);
    const [isRight, remedy] = CHECKS[setting];
    if (!isRight(value, nLayers)) throw wrong(`${setting} is ${JSON.stringify(value)}. ${remedy(nLayers)}`);
  }
  return { ...DEFAULTS, ...table };
}

function chosenLayers({ layers }, nLayers) {
  if (layers === "all" || layers === "average") return Array.from({ length: nLayers }, (_, layer) => layer);
  if (layers === "top") return [nLayers - 1];
  return Array.isArray(layers) ? layers : [layers];
}

/** Return the size of a pooled vector before the map. */
export function pooledDim(settings, nLayers, dim) {
  return settings.layers === "average" ? dim : chosenLayers(settings, nLayers).length * dim;
}

/** Return a capitalized word in lower case if that is more frequent (words are sorted by frequency); but not US or IT. */
function foldCase(token, ids) {
  const lower = token.toLowerCase();
  const [first = ""] = token; // its first character, which may be two code units
  const rank = (word) => ids.get(word) ?? ids.size;
  const isCapitalized = lower !== token && token.slice(first.length) === lower.slice(first.length);
  return isCapitalized && rank(lower) < rank(token) ? lower : token;
}

/** How the token vectors of a sentence become one vector. */
export class SentencePooling {
  #settings;
  #vocabulary;
  #read;
  #mean = null;
  #projection = null;
  #nComponents = 0;
  #wordWeights = null;
  #tableRow = null;

  /**
   * @param {Object} settings From `poolingSettings`.
   * @param {{mean: Float32Array, projection: Float32Array, wordWeights: Float32Array|null,
   *   tableRow: ((token: string) => Float32Array)|null}|null} map `tableRow` if it reads the table of words after the vector.
   * @param {import("./vocabulary.js").Vocabulary|null} vocabulary For the frequencies of words.
   * @param {ReturnType<typeof import("./marks.js").markReader>} read How the model reads a token.
   */
  constructor(settings, map, vocabulary, read) {
    this.#settings = settings;
    this.#vocabulary = vocabulary;
    this.#read = read;
    if (!map) return;
    this.#mean = map.mean;
    this.#projection = map.projection;
    this.#wordWeights = map.wordWeights;
    this.#tableRow = map.tableRow;
    this.#nComponents = this.#projection.length / this.#mean.length;
  }

  /** Return the required layers. */
  layers(nLayers) {
    return chosenLayers(this.#settings, nLayers);
  }

  /**
   * Return a sentence as it is read: with the marks of the vocabulary, in capitals with its case, too, and, in layer 0, in the
   * case that is more frequent.
   */
  fold(tokens) {
    const known = this.#vocabulary?.ids;
    if (!known) return tokens;
    const layers = [this.#settings.layers].flat();
    const isContextFree = layers.length === 1 && layers[0] === 0;
    const withCase = isContextFree ? readCapitals(tokens, known) : this.#read.withCase(tokens);
    const plain = withCase.map((token) => this.#plain(token, known));
    return isContextFree ? plain.map((token) => foldCase(token, known)) : plain;
  }

  /** Return an unknown token with plain marks if that spelling is known, otherwise as the model reads it. */
  #plain(token, known) {
    if (known.has(token)) return token;
    const plain = TREEBANK_QUOTES[token] ?? translate(token, PLAIN_MARKS);
    return known.has(plain) ? plain : this.#read(token);
  }

  /**
   * Combine the vectors of a sentence's tokens.
   * @param {string[]} tokens
   * @param {Float32Array} vectors `(layers, tokens, dim)`
   */
  pool(tokens, vectors, nLayers, dim) {
    const size = pooledDim(this.#settings, nLayers, dim);
    const mean = new Float64Array(this.#nComponents || size);
    const weights = this.#weights(tokens);
    const total = weights.reduce((sum, weight) => sum + weight, 0);
    tokens.forEach((word, token) => {
      const vector = new Float64Array(size); // of all layers: their average, or concatenated
      for (let layer = 0; layer < nLayers; layer++) {
        const first = (layer * tokens.length + token) * dim;
        for (let at = 0; at < dim; at++) vector[(layer * dim + at) % size] += (vectors[first + at] * size) / (nLayers * dim);
      }
      const mapped = this.#mapped(this.#tableRow ? Float64Array.of(...vector, ...this.#tableRow(word)) : vector);
      for (let at = 0; at < mean.length; at++) mean[at] += (weights[token] / total) * mapped[at];
    });
    return Float32Array.from(mean);
  }

  /** Map a vector and scale it to length 1, if there is a map. */
  #mapped(vector) {
    if (!this.#mean) return vector;
    const sums = new Float64Array(this.#nComponents);
    for (let at = 0; at < vector.length; at++) {
      const difference = vector[at] - this.#mean[at];
      for (let k = 0; k < sums.length; k++) sums[k] += difference * this.#projection[at * sums.length + k];
    }
    const mapped = Float32Array.from(sums); // infinite if Python's is
    const length = Math.hypot(...mapped);
    return length ? mapped.map((value) => value / length) : mapped;
  }

  /** If words are weighted, punctuation has no weight, unless there is nothing else. */
  #weights(tokens) {
    const onlyWords = WEIGHTINGS[this.#settings.weighting] && tokens.some((token) => LETTER_OR_DIGIT.test(token));
    return tokens.map((token) => (onlyWords && !LETTER_OR_DIGIT.test(token) ? 0 : this.#weight(token)));
  }

  #weight(token) {
    const { weighting, smoothing } = this.#settings;
    const weightOf = WEIGHTINGS[weighting];
    const vocabulary = this.#vocabulary;
    if (!vocabulary && (weightOf || this.#wordWeights)) {
      throw new Error("Sentence vectors of this model need word frequencies, but the model has no vocab.txt.");
    }
    const lower = token.toLowerCase();
    const trained = this.#wordWeights?.[vocabulary.id(vocabulary.ids.has(lower) ? lower : token)] ?? 1;
    if (!weightOf) return trained;
    // A word is at least as frequent as its lower-case form.
    const probability = Math.max(vocabulary.probability(token), vocabulary.probability(lower));
    return trained * weightOf(probability, smoothing);
  }
}
