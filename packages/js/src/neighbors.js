// The occurrences of words most similar to a word in another sentence (Peters et al. 2018, table 4).

import { markReader } from "./marks.js";
import { checkCount, largest } from "./predictions.js";

const read = markReader();
/** Whether words only differ in typographic marks. */
const isSpelling = (word, other) => read(word) === read(other);

/** An in-memory index of every token in some sentences. Vectors have float16 precision, as in Python's index. */
export class NeighborIndex {
  /**
   * @param {import("./elmo.js").Elmo} elmo
   * @param {string[][]} sentences
   */
  constructor(elmo, sentences) {
    this.elmo = elmo;
    this.sentences = sentences;
    this.tokens = []; // each token's sentence, position in it, and word
    const layers = Array.from({ length: elmo.nLayers }, () => []);
    const words = new Map();
    elmo.embed(sentences).forEach((found, sentence) => {
      sentences[sentence].forEach((word, token) => {
        this.tokens.push({ sentence, token, word });
        const own = layers.map((_, layer) => roundToFloat16(unit(found.vector(layer, token))));
        own.forEach((vector, layer) => layer && layers[layer].push(vector));
        const kind = words.get(word);
        if (kind) kind.count++;
        else words.set(word, { word, count: 1, vector: own[0] });
      });
    });
    this.layers = layers;
    this.words = [...words.values()];
  }

  /** Find neighbors; see index.d.ts. */
  neighbors(sentence, position, { n = 5, layers, among = "any", minCount = 1, before = [] } = {}) {
    const found = this.elmo.embedDocuments([[...before, sentence]])[0].at(-1);
    const chosen = layers ?? this.layers.map((_, layer) => layer).slice(1);
    if (!Array.isArray(chosen)) throw new TypeError(`layers is ${chosen}. Pass an array of layers from 1 to ${this.layers.length - 1}.`);
    const wrong = chosen.findIndex((layer) => !(Number.isInteger(layer) && layer >= 1 && layer < this.layers.length));
    if (wrong >= 0) throw new RangeError(`The index has no layer ${chosen[wrong]}; it has layers 1 to ${this.layers.length - 1}.`);
    checkCount("n", n);
    checkCount("minCount", minCount);
    if (!["any", "same", "other"].includes(among)) throw new Error(`among is '${among}'. Choose 'any', 'same' or 'other'.`);
    const occurrences = chosen.map((layer) => [
      layer,
      this.#nearest(unit(found.vector(layer, position)), layer, sentence, sentence[position], n, among),
    ]);
    return {
      contextFree: this.#similarWords(unit(found.vector(0, position)), sentence[position], n, minCount),
      layers: Object.fromEntries(occurrences),
    };
  }

  #similarWords(vector, word, n, minCount) {
    const others = this.words.filter((kind) => !isSpelling(kind.word, word) && kind.count >= minCount);
    const cosines = Float64Array.from(others, (kind) => dot(kind.vector, vector));
    return largest(cosines, n).map((at) => ({ similarity: cosines[at], word: others[at].word, count: others[at].count }));
  }

  #nearest(vector, layer, words, word, n, among) {
    const searched = [...this.tokens.keys()].filter((at) => among === "any" || isSpelling(this.tokens[at].word, word) === (among === "same"));
    const cosines = Float64Array.from(searched, (at) => dot(this.layers[layer][at], vector));
    const order = [...searched.keys()].sort((a, b) => cosines[b] - cosines[a]);
    const found = [];
    const seen = new Set([JSON.stringify(words)]); // skip the sentence itself, and duplicates of a sentence
    for (const at of order) {
      if (found.length === n) break;
      const { sentence, token } = this.tokens[searched[at]];
      const text = JSON.stringify(this.sentences[sentence]);
      if (seen.has(text) || seen.has(`${token} ${text}`)) continue;
      seen.add(`${token} ${text}`);
      found.push({ similarity: cosines[at], sentence, token, words: this.sentences[sentence] });
    }
    return found;
  }
}

function unit(vector) {
  const norm = Math.sqrt(dot(vector, vector)) || 1;
  return vector.map((value) => value / norm);
}

function dot(a, b) {
  let sum = 0;
  for (let at = 0; at < a.length; at++) sum += a[at] * b[at];
  return sum;
}

/** Round numbers to float16: 11 binary digits, or multiples of 2^-24. */
function roundToFloat16(vector) {
  return vector.map((value) => {
    const exponent = Math.max(-14, Math.floor(Math.log2(Math.abs(value) || 1)));
    const step = 2 ** (exponent - 10);
    const multiple = value / step;
    const nearest = Math.round(multiple);
    // Ties to even; Math.round rounds them up.
    return step * (nearest - multiple === 0.5 && nearest % 2 ? nearest - 1 : nearest);
  });
}
