// The words of a softmax, sorted by frequency.

import { BEGIN_SENTENCE, END_SENTENCE } from "./characters.js";
import { markReader } from "./marks.js";
import { withoutSpacesAtEnds } from "./tokenize.js";

export const UNKNOWN = "<UNK>";
const IGNORED_LINE = "!!!MAXTERMID"; // the last line of some published files, which is not a word

/** A list of words. A word's id is its index. */
export class Vocabulary {
  /** @param {string[]} words Including `<S>`, `</S>` and `<UNK>`. */
  constructor(words) {
    this.words = words;
    this.ids = new Map(words.map((word, id) => [word, id]));
    /** How a model with these words reads a token. */
    this.read = markReader(this.ids);
    const missing = [BEGIN_SENTENCE, END_SENTENCE, UNKNOWN].filter((word) => !this.ids.has(word));
    if (missing.length) throw new Error(`The vocabulary lacks ${missing.join(", ")}.`);
    this.unknownId = this.ids.get(UNKNOWN);
    this.specialIds = [BEGIN_SENTENCE, END_SENTENCE, UNKNOWN].map((word) => this.ids.get(word));
    this.logUnigram = this.#logUnigram();
  }

  /** Read a vocabulary file: one word per line. */
  static fromText(text) {
    const lines = text.replace(/^\ufeff/, "").split("\n").map(withoutSpacesAtEnds);
    if (!lines.at(-1)) lines.pop();
    return new Vocabulary(lines.filter((line) => line !== IGNORED_LINE));
  }

  /** Return the id of a word, or the id of `<UNK>`. */
  id(word) {
    return this.ids.get(word) ?? this.unknownId;
  }

  /** Estimate a word's probability in running text by Zipf's law; unlisted words count like the rarest word. */
  probability(word) {
    const id = this.ids.get(word);
    const isWord = id !== undefined && !this.specialIds.includes(id);
    return isWord ? Math.exp(this.logUnigram[id]) : this.#rarest;
  }

  #rarest = 1;

  /** Return each word's log probability by rank; special words count like the most frequent word. */
  #logUnigram() {
    const nWords = this.words.length - this.specialIds.length;
    let harmonic = 0;
    for (let rank = 1; rank <= nWords; rank++) harmonic += 1 / rank;
    let rank = 0;
    const special = new Set(this.specialIds);
    const logs = this.words.map((_, id) => (special.has(id) ? -Math.log(harmonic) : -Math.log(++rank * harmonic)));
    if (nWords) this.#rarest = 1 / (nWords * harmonic);
    return Float64Array.from(logs);
  }
}
