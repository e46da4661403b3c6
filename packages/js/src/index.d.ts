/** A sentence: its tokens, without boundaries. */
export type Sentence = readonly string[];
/** The sentences of a document, in order. */
export type Document = readonly Sentence[];
export type Direction = "forward" | "backward" | "both";
export type Precision = "float32" | "bfloat16" | "int8" | "int7";

export interface LoadOptions {
  /**
   * The lowest precision in which weights may be computed. The default is the model's own, which is int8 for the included
   * model: 1.7 times as fast as float32 for vectors, and 0.05 nats from it on average.
   */
  precision?: Precision;
  /** The LSTM state before each sentence: the model's own, or zeros. */
  start?: "warm" | "zero";
  /**
   * Whether to open the softmax, for `surprisal` and `substitutes`. The default is true. Without it, the included model needs
   * 23 MB of memory less.
   */
  predicts?: boolean;
  /** Whether to load the head that was trained on pairs of sentences, for `sentenceVectors`, if there is one. The default is true. */
  trained?: boolean;
  /** Where the engine is, or its bytes, if your bundler moves it. */
  wasm?: string | URL | ArrayBuffer | Uint8Array;
}

/** The vectors of one sentence. */
export class Layers {
  /** All numbers, `(layers, tokens, dim)`, row by row. */
  readonly data: Float32Array;
  /** The number of layers and of tokens, and the size of a vector. */
  readonly shape: [number, number, number];
  /** Return the vector of a token in a layer: a view, not a copy. */
  vector(layer: number, token: number): Float32Array;
}

export interface Substitute {
  word: string;
  /** Over the words that can be among the result. */
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
   * where a direction predicts nothing: forward at the first boundary, backward at the last one.
   */
  nats: Float32Array[];
  /** Whether a token is not in the vocabulary; its nats are then those of `<UNK>`. */
  isUnknown: boolean[];
  /** For each token the nats that the letters of an unknown word cost besides; 0 for the others. */
  spellingNats: number[];
  /** For each direction the surprisal of the whole sentence, without the letters of unknown words. */
  totalNats: number[];
  /** With `nExpected`: for each token, without boundaries, the words that each direction expected there. */
  expected?: Record<Direction, Substitute[]>[];
}

/** Whether a document's own words are expected again; or how: `theta` (15, at most 40) says how much more a word of a similar position counts, and `size` (2,000) how many words are remembered. */
export type Cache = boolean | { theta?: number; size?: number };

/** The surprisal of a word as its author wrote it, with the punctuation attached to it: the sum over its tokens. */
export interface WordSurprisal {
  /** The number of the text, of the sentence in it, and of the word in the text, from 0. */
  textIndex: number;
  sentenceIndex: number;
  wordIndex: number;
  word: string;
  /** Where the word is in its text, in the units of `String.slice`. */
  start: number;
  stop: number;
  /** -ln p(word | all words before it), and for the backward direction all words after it; null if the model lacks it. */
  forwardNats: number | null;
  backwardNats: number | null;
  nTokens: number;
  /** Whether one of its tokens is not in the vocabulary; its nats are then those of `<UNK>`. */
  unknown: boolean;
  /** The nats that the letters of its unknown tokens cost besides. */
  spellingNats: number;
}

/**
 * A biLM that computes vectors of words in their sentences, and predicts words if its softmax is there.
 *
 * It computes in the calling thread. In a page, use it in a worker, so that the page goes on answering.
 */
export class Elmo {
  /**
   * Load a model in the format of elmokit.
   * @param source The URL or, in Node, the path of its directory; by default, the model inside the package.
   */
  static load(source?: string | URL, options?: LoadOptions): Promise<Elmo>;
  readonly name: string;
  readonly precision: Precision;
  /** The model card. */
  readonly card: Record<string, unknown>;
  /** The words of the softmax; null if the model has none. */
  readonly vocabulary: Vocabulary | null;
  /** Number of layers, layer 0 (without context) included. */
  readonly nLayers: number;
  /** Size of a vector: all directions side by side. */
  readonly dim: number;
  /** Whether `surprisal` and `substitutes` work. */
  readonly canPredict: boolean;
  /** The directions that `substitutes` answers for. */
  readonly expectations: Direction[];
  /**
   * Compute vectors.
   * @param options.layers All layers, or their numbers in the order of the result.
   * @returns For each sentence its layers. The vectors of a sentence do not depend on the other sentences.
   */
  embed(sentences: readonly Sentence[], options?: { layers?: "all" | readonly number[] }): Layers[];
  /**
   * Compute vectors of sentences in their documents: each starts from the LSTM state after the sentence before, and the first
   * from the start state. Documents are read side by side, so many take less time than one of the same size.
   * @returns For each document the layers of its sentences. They do not depend on the other documents.
   */
  embedDocuments(documents: readonly Document[], options?: { layers?: "all" | readonly number[] }): Layers[][];
  /**
   * Compute the surprisal of every token.
   * @param options.nExpected Also find so many words that were expected at each token.
   */
  surprisal(sentences: readonly Sentence[], options?: { nExpected?: number }): Surprisal[];
  /**
   * Compute the surprisal of every token of sentences in their documents, which are read as by `embedDocuments`.
   * @param options.cache Expect words that the document has had, too, unknown ones included. An unknown word that comes again
   * has nats of its own, and 0 `spellingNats`.
   */
  surprisalDocuments(documents: readonly Document[], options?: { nExpected?: number; cache?: Cache }): Surprisal[][];
  /**
   * Compute the surprisal of every word of raw English texts, as its author wrote it.
   * @param options.documents Read each text as a document. By default, each sentence is read by itself.
   * @param options.cache With `documents`, as in `surprisalDocuments`.
   * @param options.wrapped As in `splitSentences`.
   */
  wordSurprisal(texts: readonly string[], options?: { documents?: boolean; cache?: Cache; wrapped?: Wrapped }): WordSurprisal[];
  /**
   * Find the words that the model expects at a position, most probable first. It does not see the token there.
   * @param position Index of a token, from 0.
   * @param options.direction The default is "both": the product of both directions, divided by the word's frequency.
   * @param options.specialWords Whether `<S>`, `</S>` and `<UNK>` can be among them.
   * @param options.before The sentences before it, if it is read in its document.
   * @param options.cache Expect words of the document again, too. Unknown words can then be among the words.
   */
  substitutes(
    sentence: Sentence,
    position: number,
    options?: { direction?: Direction; n?: number; specialWords?: boolean; before?: Document; cache?: Cache },
  ): Substitute[];
  /**
   * Compute one vector per sentence, whitened if the model stores a whitening; compare them by their cosine. Frequent words
   * have less weight, and punctuation none; but a model without whitening and vocab.txt has plain means. In layer 0, capitalized words are read in lower case if they are more frequent so.
   * @param options.trained Use the head that the model stores instead, which was trained on pairs of sentences.
   */
  sentenceVectors(sentences: readonly Sentence[], options?: { trained?: boolean }): Float32Array[];
}

/** The words of a softmax; the id of a word is its index. */
export class Vocabulary {
  readonly words: string[];
  readonly unknownId: number;
  /** Return the id of a word, or that of `<UNK>`. */
  id(word: string): number;
  /** Estimate how probable a word is in running text, by its rank. */
  probability(word: string): number;
}

export interface Occurrence {
  /** Cosine of the two vectors. */
  similarity: number;
  /** The number of the sentence in the index, and of the token in it. */
  sentence: number;
  token: number;
  words: Sentence;
}

export interface Neighbors {
  /** The most similar words by layer 0, where a word has the same vector in every sentence. */
  contextFree: { similarity: number; word: string; count: number }[];
  /** By layer, from 1, the most similar occurrences. */
  layers: Record<number, Occurrence[]>;
}

/** An index in memory of every token of some sentences. */
export class NeighborIndex {
  constructor(elmo: Elmo, sentences: readonly Sentence[]);
  /**
   * Find the occurrences that are most similar to a token, by each layer. The same sentence is left out.
   * @param options.among Occurrences of any word, of the same word only, or of other words only.
   * @param options.minCount Context-free neighbors occur at least so often in the index.
   * @param options.before The sentences before it, if it is read in its document.
   */
  neighbors(
    sentence: Sentence,
    position: number,
    options?: { n?: number; layers?: readonly number[]; among?: "any" | "same" | "other"; minCount?: number; before?: Document },
  ): Neighbors;
}

/** A part of a text, and where it is there, in the units of `String.slice`. */
export interface Token {
  text: string;
  start: number;
  stop: number;
}

/**
 * Whether the lines of raw text are wrapped, as in e-mail and books: then they are joined by spaces, and a blank line ends a
 * paragraph. "auto", the default, decides by the first lines, and says so on the console.
 */
export type Wrapped = "auto" | "yes" | "no";

/** Split raw English text into sentences. The end of a line ends a sentence, too, unless the lines are wrapped. */
export function splitSentences(text: string, options?: { offsets?: false; wrapped?: Wrapped }): string[];
export function splitSentences(text: string, options: { offsets: true; wrapped?: Wrapped }): Token[];

/** Split a raw English sentence into tokens in the style of the Penn Treebank, as the included model was trained. */
export function tokenize(sentence: string, options?: { offsets?: false }): string[];
export function tokenize(sentence: string, options: { offsets: true }): Token[];

/** Split a sentence that is tokenized already, with spaces between the tokens. */
export function splitAtSpaces(text: string): string[];
