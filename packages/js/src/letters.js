// The surprisal of the letters of unknown words, in nats. As in elmokit/lm/spelling.py and elmokit/pretrained/letter_model.py.

import { largestAndSum } from "./predictions.js";

const EDGE = 256; // the symbol for both edges of a word; other symbols are bytes
const N_SYMBOLS = 257;
const ORDER = 4; // bytes: the predicted one and the three before it

/** Return the bytes of a word, and the edge at its end. */
function symbolsOf(word) {
  return [...new TextEncoder().encode(word.replace(/[\ud800-\udfff]/gu, "?")), EDGE];
}

/** Computes the nats of words from their symbols, and caches them. */
class Spelling {
  #known = new Map();

  /** Return the negative logarithm of the probability of a word's letters. */
  nats(word) {
    if (!this.#known.has(word)) this.#known.set(word, this.symbolNats(symbolsOf(word)));
    return this.#known.get(word);
  }
}

/** A model's letter model, which was trained on unknown words. */
export class LetterSpelling extends Spelling {
  /** @param {import("./files.js").Tensors} tensors */
  constructor(tensors) {
    super();
    const [, dim] = tensors.shape("embedding") ?? [];
    const [nUnits, nInputs] = tensors.shape("hidden_weight") ?? [];
    tensors.check({
      embedding: [N_SYMBOLS, dim],
      hidden_weight: [nUnits, Math.max(1, Math.floor(nInputs / dim)) * dim],
      hidden_bias: [nUnits],
      output_weight: [dim, nUnits],
      bias: [N_SYMBOLS],
    });
    this.nContext = nInputs / dim;
    this.embedding = tensors.read("embedding");
    this.hidden = { weight: tensors.read("hidden_weight"), bias: tensors.read("hidden_bias") };
    this.output = { weight: tensors.read("output_weight"), bias: new Float32Array(dim) };
    this.bias = tensors.read("bias");
    this.dim = dim;
  }

  symbolNats(symbols) {
    const { dim, nContext } = this;
    const context = Array(nContext).fill(EDGE);
    let nats = 0;
    for (const symbol of symbols) {
      const inputs = new Float64Array(nContext * dim);
      context.forEach((row, at) => inputs.set(this.embedding.subarray(row * dim, (row + 1) * dim), at * dim));
      const units = product(this.hidden, inputs).map((value) => Math.max(value, 0));
      const scores = product({ weight: this.embedding, bias: this.bias }, product(this.output, units));
      const [largest, total] = largestAndSum(scores);
      nats += largest + Math.log(total) - scores[symbol];
      context.push(symbol);
      context.shift();
    }
    return nats;
  }
}

/** Return `weight @ inputs + bias`. */
function product({ weight, bias }, inputs) {
  const outputs = Float64Array.from(bias);
  for (let row = 0, at = 0; row < outputs.length; row++) {
    for (let column = 0; column < inputs.length; column++, at++) outputs[row] += weight[at] * inputs[column];
  }
  return outputs;
}

/** A byte n-gram model of vocabulary words, for models without a letter model. */
export class NgramSpelling extends Spelling {
  #after = new Map(); // the count of each symbol after each context

  constructor(words) {
    super();
    for (const word of words) {
      const symbols = String.fromCharCode(...symbolsOf(word));
      for (let end = 1; end <= symbols.length; end++) {
        for (let first = Math.max(0, end - ORDER); first < end; first++) this.#count(symbols.slice(first, end - 1), symbols[end - 1]);
      }
    }
  }

  #count(context, symbol) {
    if (!this.#after.has(context)) this.#after.set(context, { total: 0, counts: new Map() });
    const after = this.#after.get(context);
    after.counts.set(symbol, (after.counts.get(symbol) ?? 0) + 1);
    after.total += 1;
  }

  symbolNats(codes) {
    const symbols = String.fromCharCode(...codes);
    let nats = 0;
    for (let end = 0; end < symbols.length; end++) {
      let probability = 1 / N_SYMBOLS;
      for (let first = end; first >= Math.max(0, end - ORDER + 1); first--) {
        const after = this.#after.get(symbols.slice(first, end));
        if (!after) break;
        const nTypes = after.counts.size;
        probability = ((after.counts.get(symbols[end]) ?? 0) + nTypes * probability) / (after.total + nTypes);
      }
      nats -= Math.log(probability);
    }
    return nats;
  }
}
