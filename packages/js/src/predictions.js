// Surprisal and substitutes from the scores of all words at a position.

// Each direction favors frequent words, so the product of both counts their frequency twice. It is divided by this power of the
// frequency, as in elmokit/lm/substitutes.py.
const UNIGRAM_POWER = 0.75;

// e^x for x <= 0 with a relative error of 3e-9: a table for steps of 1/64, and a polynomial between them. A sentence needs a
// million, and Math.exp takes four times as long.
const [STEPS, LOWEST] = [64, -80]; // e^-80 is negligible next to e^0
const POWERS = Float64Array.from({ length: 1 - LOWEST * STEPS }, (_, step) => Math.exp(-step / STEPS));
function decay(x) {
  if (!(x > LOWEST)) return 0;
  const step = (-x * STEPS) | 0;
  const rest = x + step / STEPS;
  return POWERS[step] * (1 + rest * (1 + rest * (1 / 2 + rest * (1 / 6))));
}

/** One direction's scores of all words at a position, with their log-sum-exps. */
export class Scores {
  /**
   * @param {Float32Array|Float64Array} values A score per word.
   * @param {number[]} specialIds `<S>`, `</S>` and `<UNK>`, which are summed separately, so both sums are exact.
   */
  constructor(values, specialIds) {
    this.values = values;
    this.specialIds = specialIds;
    const [largest, total] = largestAndSum(values);
    let special = 0;
    for (const id of specialIds) special += decay(values[id] - largest);
    /** Over all words. */
    this.logSum = largest + Math.log(total);
    /** Over all but special words. If special words make up nearly all of the sum, a difference would lose all digits. */
    this.logSumOfWords = special < 0.999 * total ? largest + Math.log(total - special) : this.#sumWithoutSpecial();
  }

  #sumWithoutSpecial() {
    const others = this.values.slice();
    for (const id of this.specialIds) others[id] = -Infinity;
    const [largest, total] = largestAndSum(others);
    return largest + Math.log(total);
  }
}

/** Return the largest score, and the sum of the exponentials of all scores minus the largest. */
export function largestAndSum(values) {
  let largest = -Infinity;
  for (let id = 0; id < values.length; id++) if (values[id] > largest) largest = values[id];
  let total = 0;
  for (let id = 0; id < values.length; id++) total += decay(values[id] - largest);
  return [largest, total];
}

/** Return the surprisal of a word in nats, clipped at 0 because of rounding. */
export function surprisalOf(scores, id) {
  return Math.max(0, scores.logSum - scores.values[id]);
}

/** Throw an error unless a setting is a positive integer. */
export function checkCount(name, n) {
  if (!(Number.isInteger(n) && n > 0)) throw new RangeError(`${name} is ${n}; it must be an integer of at least 1.`);
}

/**
 * Find the words with the highest probability.
 * @param {Scores[]} scores Of one direction, or of both, to multiply their probabilities.
 * @param {import("./vocabulary.js").Vocabulary} vocabulary
 * @param {number} n
 * @param {boolean} specialWords Whether `<S>`, `</S>` and `<UNK>` can be among the results.
 * @param {string[]} strings Unknown words of the document, whose scores follow those of the vocabulary.
 */
export function bestWords(scores, vocabulary, n, specialWords, strings = []) {
  const { words, specialIds, logUnigram } = vocabulary;
  let [total] = scores;
  if (scores.length > 1) {
    const [forward, backward] = scores;
    const shift = forward.logSum + backward.logSum;
    const values = new Float64Array(words.length + strings.length);
    const rarest = Math.log(vocabulary.probability("")); // an unknown word counts as frequent as the rarest known word
    for (let id = 0; id < values.length; id++) {
      const unigram = id < words.length ? logUnigram[id] : rarest;
      values[id] = forward.values[id] + backward.values[id] - shift - UNIGRAM_POWER * unigram;
    }
    total = new Scores(values, specialIds);
  }
  const logSum = specialWords ? total.logSum : total.logSumOfWords;
  const omitted = new Set(specialWords ? [] : specialIds);
  // An unknown word that is not in the caches here is excluded.
  const best = largest(total.values, n, omitted).filter((id) => id < words.length || total.values[id] > -Infinity);
  return best.map((id) => ({
    word: id < words.length ? words[id] : strings[id - words.length],
    probability: Math.exp(total.values[id] - logSum),
    score: total.values[id],
    wordId: id < words.length ? id : vocabulary.unknownId,
  }));
}

/** Return the indices of the n largest numbers, largest first; ties are in order of index. */
export function largest(values, n, omitted = new Set()) {
  const best = []; // few, so inserting is cheap
  for (let id = 0; id < values.length; id++) {
    if (best.length === n && !(values[id] > values[best.at(-1)])) continue;
    if (omitted.has(id)) continue;
    let at = best.length;
    while (at > 0 && values[best[at - 1]] < values[id]) at--;
    best.splice(at, 0, id);
    if (best.length > n) best.pop();
  }
  return best;
}
