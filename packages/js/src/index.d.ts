/** A sentence: its tokens, without boundaries. */
export type Sentence = readonly string[];
/** The sentences of a document, in order. */
export type Document = readonly Sentence[];
export type Direction = "forward" | "backward" | "both";
export type Precision = "float32" | "bfloat16" | "int8" | "int7";

export interface LoadOptions {
  /**
   * The minimum precision of the weights. The default is the model's own, int8 for the included model. That is 1.7 times as
   * fast as float32 for vectors, and surprisals differ by 0.05 nats on average.
   */
  precision?: Precision;
  /** The LSTM state that each sentence starts from: the model's own, or zeros. */
  start?: "warm" | "zero";
  /**
   * Whether to open the softmax, for `surprisal` and `substitutes`. The default is true. Without it, the included model needs
   * 23 MB less memory.
   */
  predicts?: boolean;
  /** Whether to load the head trained on pairs of sentences, if any, for `sentenceVectors`. The default is true. */
  trained?: boolean;
  /** Where the engine is, or its bytes, if your bundler moves it. */
  wasm?: string | URL | ArrayBuffer | Uint8Array;
}

/** The vectors of one sentence. */
export class Layers {
  /** All numbers, `(layers, tokens, dim)`, in row-major order. */
  readonly data: Float32Array;
  /** The numbers of layers and tokens, and the size of a vector. */
  readonly shape: [number, number, number];
  /** Return the vector of a token in a layer: a view, not a copy. */
  vector(layer: number, token: number): Float32Array;
}

export interface Substitute {
  word: string;
  /** Normalized over the words that can be among the results. */
  probability: number;
  /** The score before the softmax. */
  score: number;
  wordId: number;
}

export interface Surprisal {
  /** The sentence with its boundaries. */
  tokens: string[];
  /**
   * For each direction of the model, forward first, and each token: -ln p(token | all tokens before it), or after it. NaN
   * where a direction does not predict: forward at the first boundary, backward at the last.
   */
  nats: Float32Array[];
  /** Whether a token is missing from the vocabulary; its nats are then those of `<UNK>`. */
  isUnknown: boolean[];
  /** For each token, the additional nats of an unknown word's letters; 0 for other words. */
  spellingNats: number[];
  /** For each direction, the surprisal of the whole sentence, without the letters of unknown words. */
  totalNats: number[];
  /** With `nExpected`: for each token, without boundaries, the words that each direction expected there. */
  expected?: Record<Direction, Substitute[]>[];
}

/**
 * Whether words that have occurred in the document become more probable, or how: `theta` (15, at most 40) is the weight of
 * words at similar positions, and `size` (2,000) is the number of words to remember.
 */
export type Cache = boolean | { theta?: number; size?: number };

/** The surprisal of a word as written, including attached punctuation: the sum over its tokens. */
export interface WordSurprisal {
  /** The indices of the text, of the sentence in it, and of the word in the text, from 0. */
  textIndex: number;
  sentenceIndex: number;
  wordIndex: number;
  word: string;
  /** The word's position in its text, in the units of `String.slice`. */
  start: number;
  stop: number;
  /** -ln p(word | all words before it), or for the backward direction, all words after it; null if the model lacks it. */
  forwardNats: number | null;
  backwardNats: number | null;
  nTokens: number;
  /** Whether one of its tokens is missing from the vocabulary; its nats are then those of `<UNK>`. */
  unknown: boolean;
  /** The additional nats of the letters of its unknown tokens. */
  spellingNats: number;
}

/**
 * A biLM that computes contextual word vectors, and predicts words if it has a softmax.
 *
 * It computes in the calling thread. In a web page, use it in a worker, so that the page stays responsive.
 */
export class Elmo {
  /**
   * Load a model in elmokit's format.
   * @param source The URL or, in Node, the path of the model's directory; by default, the included model.
   */
  static load(source?: string | URL, options?: LoadOptions): Promise<Elmo>;
  readonly name: string;
  readonly precision: Precision;
  /** The model card. */
  readonly card: Record<string, unknown>;
  /** The words of the softmax; null if the model has none. */
  readonly vocabulary: Vocabulary | null;
  /** Number of layers, including layer 0 (without context). */
  readonly nLayers: number;
  /** Size of a vector, including all directions. */
  readonly dim: number;
  /** Whether `surprisal` and `substitutes` work. */
  readonly canPredict: boolean;
  /** The directions that `substitutes` supports. */
  readonly expectations: Direction[];
  /**
   * Compute vectors.
   * @param options.layers All layers, or layer numbers, in the order of the result.
   * @returns The layers of each sentence. A sentence's vectors do not depend on the other sentences.
   */
  embed(sentences: readonly Sentence[], options?: { layers?: "all" | readonly number[] }): Layers[];
  /**
   * Compute vectors of sentences in documents: each sentence starts from the LSTM state after the previous one, and the first
   * from the start state. Documents are computed in parallel, so many take less time than one of the same total size.
   * @returns The layers of each document's sentences. They do not depend on the other documents.
   */
  embedDocuments(documents: readonly Document[], options?: { layers?: "all" | readonly number[] }): Layers[][];
  /**
   * Compute the surprisal of every token.
   * @param options.nExpected Also find this number of words that were expected at each token.
   */
  surprisal(sentences: readonly Sentence[], options?: { nExpected?: number }): Surprisal[];
  /**
   * Compute the surprisal of every token in documents, which are read as in `embedDocuments`.
   * @param options.cache Make words that have occurred in the document more probable, including unknown words. An unknown word
   * that occurs again has its own nats, and 0 `spellingNats`.
   */
  surprisalDocuments(documents: readonly Document[], options?: { nExpected?: number; cache?: Cache }): Surprisal[][];
  /**
   * Compute the surprisal of every word in raw English texts, as written.
   * @param options.documents Read each text as a document. By default, sentences are read separately.
   * @param options.cache With `documents`, as in `surprisalDocuments`.
   * @param options.wrapped As in `splitSentences`.
   */
  wordSurprisal(texts: readonly string[], options?: { documents?: boolean; cache?: Cache; wrapped?: Wrapped }): WordSurprisal[];
  /**
   * Find the words that the model expects at a position, most probable first. It does not see the token at that position.
   * @param position Index of a token, from 0.
   * @param options.direction The default is "both": the product of both directions, divided by the word's frequency.
   * @param options.specialWords Whether `<S>`, `</S>` and `<UNK>` can be among the results.
   * @param options.before The preceding sentences, if the sentence is read in its document.
   * @param options.cache Make words of the document more probable. Unknown words can then be among the results.
   */
  substitutes(
    sentence: Sentence,
    position: number,
    options?: { direction?: Direction; n?: number; specialWords?: boolean; before?: Document; cache?: Cache },
  ): Substitute[];
  /**
   * Compute one vector per sentence, whitened if the model stores a whitening; compare them by their cosine. Frequent words
   * have less weight, and punctuation has none. A model without whitening and vocab.txt uses plain means. In layer 0,
   * capitalized words are read in lower case if that is more frequent.
   * @param options.trained Use the model's head trained on pairs of sentences instead.
   */
  sentenceVectors(sentences: readonly Sentence[], options?: { trained?: boolean }): Float32Array[];
}

/** The words of a softmax; a word's id is its index. */
export class Vocabulary {
  readonly words: string[];
  readonly unknownId: number;
  /** Return the id of a word, or the id of `<UNK>`. */
  id(word: string): number;
  /** Estimate a word's probability in running text from its rank. */
  probability(word: string): number;
}

export interface Occurrence {
  /** Cosine of both vectors. */
  similarity: number;
  /** The indices of the sentence in the index, and of the token in it. */
  sentence: number;
  token: number;
  words: Sentence;
}

export interface Neighbors {
  /** The most similar words by layer 0, where a word has the same vector in every sentence. */
  contextFree: { similarity: number; word: string; count: number }[];
  /** The most similar occurrences by layer, from 1. */
  layers: Record<number, Occurrence[]>;
}

/** An in-memory index of every token in some sentences. */
export class NeighborIndex {
  constructor(elmo: Elmo, sentences: readonly Sentence[]);
  /**
   * Find the occurrences most similar to a token, by layer. Occurrences in the same sentence are omitted.
   * @param options.among Search occurrences of any word, of the same word, or of other words.
   * @param options.minCount The minimum count of context-free neighbors in the index.
   * @param options.before The preceding sentences, if the sentence is read in its document.
   */
  neighbors(
    sentence: Sentence,
    position: number,
    options?: { n?: number; layers?: readonly number[]; among?: "any" | "same" | "other"; minCount?: number; before?: Document },
  ): Neighbors;
}

/** A part of a text and its position, in the units of `String.slice`. */
export interface Token {
  text: string;
  start: number;
  stop: number;
}

/**
 * Whether the lines of raw text are wrapped, as in e-mail and books. If so, they are joined with spaces, and a blank line ends
 * a paragraph. "auto", the default, decides from the first lines, with a message on the console.
 */
export type Wrapped = "auto" | "yes" | "no";

/** Split raw English text into sentences. A line break also ends a sentence, unless lines are wrapped. */
export function splitSentences(text: string, options?: { offsets?: false; wrapped?: Wrapped }): string[];
export function splitSentences(text: string, options: { offsets: true; wrapped?: Wrapped }): Token[];

/** Split a raw English sentence into tokens in the style of the Penn Treebank, as for the training of the included model. */
export function tokenize(sentence: string, options?: { offsets?: false }): string[];
export function tokenize(sentence: string, options: { offsets: true }): Token[];

/** Split an already tokenized sentence, with spaces between tokens. */
export function splitAtSpaces(text: string): string[];
