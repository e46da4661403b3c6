// A cache that makes words of a document more probable (Grave, Joulin and Usunier 2017). As in elmokit/lm/word_cache.py.

const MAX_THETA = 40;
const SIZES = [50, 150, 400, 1000]; // numbers of words in the cache at which its weight changes
const FORWARD_WEIGHTS = [0.028, 0.077, 0.117, 0.153, 0.2];
const BACKWARD_WEIGHTS = [0.026, 0.071, 0.11, 0.148, 0.191];

/** Return the settings for the option `cache`; null for no cache. */
export function cacheSettings(cache) {
  if (!cache) return null;
  const { theta = 15, size = 2000 } = cache === true ? {} : cache;
  if (!(theta >= 0 && theta <= MAX_THETA)) throw new RangeError(`theta is ${theta}; it must be a number from 0 to ${MAX_THETA}.`);
  if (!(Number.isInteger(size) && size > 0)) throw new RangeError(`size is ${size}; it must be an integer of at least 1.`);
  return { theta, size };
}

/** The last words of a document, in the order in which one direction has read them. */
class WordCache {
  #vectors = [];
  #words = [];

  constructor({ theta, size }, weights) {
    Object.assign(this, { theta, size, weights });
  }

  /**
   * Return the cache's expectations at the next position, and add its word.
   * @param {Float32Array} hidden The vector that predicts it.
   * @param {number} word Its number.
   * @returns {{weight: number, probabilities: Map<number, number>}} The weight of the cache, and each word in it.
   */
  read(hidden, word) {
    const norm = Math.hypot(...hidden) || 1;
    const vector = hidden.map((value) => value / norm);
    const probabilities = new Map();
    let total = 0;
    this.#vectors.forEach((other, at) => {
      let cosine = 0;
      for (let column = 0; column < vector.length; column++) cosine += vector[column] * other[column];
      const strength = Math.exp(this.theta * (cosine - 1));
      total += strength;
      probabilities.set(this.#words[at], (probabilities.get(this.#words[at]) ?? 0) + strength);
    });
    for (const [number, strength] of probabilities) probabilities.set(number, strength / total);
    const n = this.#words.length;
    const weight = n ? this.weights[SIZES.filter((size) => n >= size).length] : 0;
    this.#vectors.push(vector);
    this.#words.push(word);
    if (n === this.size) {
      this.#vectors.shift();
      this.#words.shift();
    }
    return { weight, probabilities };
  }
}

/** The caches of both directions of a document. */
export class DocumentCache {
  #caches;
  #numbers = new Map();

  /**
   * @param {{theta: number, size: number}} settings
   * @param {boolean[]} readBackward For each direction.
   * @param {function(string): number} spell The nats of the letters of an unknown word.
   */
  constructor(settings, readBackward, spell) {
    this.readBackward = readBackward;
    this.spell = spell;
    /** The document's unknown words, in order of appearance, and the nats of their letters. */
    this.strings = [];
    this.spelling = [];
    this.#caches = readBackward.map((backward) => new WordCache(settings, backward ? BACKWARD_WEIGHTS : FORWARD_WEIGHTS));
  }

  /** Return the number of an unknown word, which is negative. */
  #number(word) {
    if (!this.#numbers.has(word)) {
      this.#numbers.set(word, -1 - this.strings.length);
      this.strings.push(word);
      this.spelling.push(this.spell(word));
    }
    return this.#numbers.get(word);
  }

  /**
   * Read the next sentence and add its words.
   * @param {(number|string)[]} words With boundaries: the ids of known words, and unknown words.
   * @param {function(number, number): Float32Array|null} hiddenAt The vector that predicts a position in a direction; null at its edge.
   * @returns {{numbers: number[], expected: Object[][]}} The number of each word, and by direction and position what the cache
   *   expected there.
   */
  read(words, hiddenAt) {
    const numbers = words.map((word) => (typeof word === "string" ? this.#number(word) : word));
    const expected = this.readBackward.map((backward, direction) => {
      const found = Array(words.length).fill(null);
      for (let step = 0; step < words.length; step++) {
        const position = backward ? words.length - 1 - step : step;
        const hidden = hiddenAt(direction, position);
        if (hidden) found[position] = this.#caches[direction].read(hidden, numbers[position]);
      }
      return found;
    });
    return { numbers, expected };
  }

  /** Return log probabilities, with the cache, of the vocabulary's words, followed by the document's unknown words. */
  mix({ values, logSum }, { weight, probabilities }, unknownId) {
    const nWords = values.length;
    const mixed = new Float64Array(nWords + this.strings.length).fill(-Infinity);
    for (let id = 0; id < nWords; id++) mixed[id] = values[id] - logSum + Math.log1p(-weight);
    const unknown = mixed[unknownId];
    let named = 0; // the probability that an unknown word's letters are those of a word in the cache
    for (const [number, probability] of probabilities) {
      let column = number;
      if (number < 0) {
        column = nWords - 1 - number;
        const nats = this.spelling[-1 - number];
        mixed[column] = unknown - nats;
        named += Math.exp(-nats);
      }
      mixed[column] = addLogs(mixed[column], Math.log(weight * probability));
    }
    const others = Math.log1p(-Math.min(named, 1));
    mixed[unknownId] = addLogs(unknown + others, Math.log(weight * (probabilities.get(unknownId) ?? 0)));
    return mixed;
  }
}

/** Return log(e^a + e^b). */
export function addLogs(one, other) {
  const [low, high] = one < other ? [one, other] : [other, one];
  return high === -Infinity ? high : high + Math.log1p(Math.exp(low - high));
}
