// `Elmo`: a model and its computations.

import { BEGIN_SENTENCE, END_SENTENCE, encodeTokens } from "./characters.js";
import { readConfig, tensorShapes, WORD_TABLE } from "./config.js";
import { Engine, openLibrary, PackedMatrix } from "./engine.js";
import { directoryUrl, MissingFileError, readBytes, shown, Tensors } from "./files.js";
import { bestWords, checkCount, Scores, surprisalOf } from "./predictions.js";
import { LetterSpelling, NgramSpelling } from "./letters.js";
import { markReader } from "./marks.js";
import { pooledDim, poolingSettings, SentencePooling } from "./sentence_vectors.js";
import { UNKNOWN, Vocabulary } from "./vocabulary.js";
import { warnOnce } from "./warnings.js";
import { addLogs, cacheSettings, DocumentCache } from "./word_cache.js";
import { sumByWord, textTokens } from "./words.js";

const BATCH_TOKENS = 2048; // positions that are computed together; bounds the memory
const POSITIONS_AT_ONCE = 16; // positions whose scores of all words are in memory
const MODEL = new URL("../models/en-mini/", import.meta.url);
const WHITENING = "whitening.safetensors";
const SENTENCE_HEAD = "sentence_head.safetensors";
const LETTERS = "letters.safetensors";

/** The vectors of one sentence. */
export class Layers {
  /**
   * @param {Float32Array} data `(layers, tokens, dim)`
   * @param {[number, number, number]} shape
   */
  constructor(data, shape) {
    this.data = data;
    this.shape = shape;
  }

  /** Return the vector of a token in a layer: a view, not a copy. */
  vector(layer, token) {
    const [nLayers, nTokens, dim] = this.shape;
    const exists = [layer, token].every(Number.isInteger) && layer >= 0 && layer < nLayers && token >= 0 && token < nTokens;
    if (!exists) {
      throw new RangeError(`There is no layer ${layer} of token ${token}: there are ${nLayers} layers and ${nTokens} tokens.`);
    }
    const first = (layer * nTokens + token) * dim;
    return this.data.subarray(first, first + dim);
  }
}

/** A biLM that computes contextual word vectors, and predicts words if it has a softmax. */
export class Elmo {
  #read;
  #engine;
  #starts; // of each direction
  #softmax = null;
  #spelling;
  #pooling;
  #trained;
  #leftOutTrained;
  #hasPlainMeans;

  /** Use `Elmo.load`. */
  constructor(parts) {
    this.config = parts.config;
    this.card = parts.card;
    this.precision = parts.precision;
    this.vocabulary = parts.vocabulary;
    this.name = parts.name;
    this.#read = parts.read;
    this.#engine = parts.engine;
    this.#softmax = parts.softmax;
    this.#spelling = parts.spelling;
    this.#pooling = parts.pooling;
    this.#trained = parts.trained;
    this.#leftOutTrained = parts.leftOutTrained;
    this.#hasPlainMeans = parts.hasPlainMeans;
    this.#starts = parts.start ? parts.config.directions.map(() => parts.start) : this.#statesAfterAnEmptySentence();
  }

  /**
   * Load a model in elmokit's format.
   * @param {string|URL} [source] The URL or, in Node, the path of the model's directory; by default, the included model.
   * @param {Object} [options] See index.d.ts.
   * @returns {Promise<Elmo>}
   */
  static async load(source = MODEL, { precision, start = "warm", predicts = true, trained = true, wasm } = {}) {
    if (!["warm", "zero"].includes(start)) throw new Error(`start is '${start}'. Choose 'warm' or 'zero'.`);
    const folder = directoryUrl(source);
    const read = (name) => readBytes(new URL(name, folder));
    const optional = (name) => read(name).catch((error) => (error instanceof MissingFileError ? null : Promise.reject(error)));
    const text = (bytes) => new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    const content = parsed(await read("config.json"), text);
    const config = readConfig(content, shown(new URL("config.json", folder)));
    const [library, weights, softmaxFile, words, whitening, head, letters] = await Promise.all([
      openLibrary(wasm),
      read("model.safetensors"),
      predicts && content.softmax ? optional("softmax.safetensors") : null,
      optional("vocab.txt"),
      content.sentence_pooling !== undefined ? read(WHITENING) : null,
      trained && content.sentence_head !== undefined ? read(SENTENCE_HEAD) : null,
      predicts && content.letters ? read(LETTERS) : null,
    ]);
    const tensors = new Tensors(weights, "model.safetensors");
    tensors.check(tensorShapes(config));
    const lowest = precision ?? content.precision ?? "float32";
    const vocabulary = words && Vocabulary.fromText(text(words));
    if (config.nTableWords && vocabulary?.words.length !== config.nTableWords) {
      throw new Error(`The model has a table of ${config.nTableWords} words, but vocab.txt has ${vocabulary?.words.length ?? "no"} words.`);
    }
    const exact = Boolean(content.exact_marks);
    const wordOf = exact || !vocabulary ? markReader(vocabulary?.ids, exact) : vocabulary.read;
    const tableRow = (token) => {
      const id = tableId(vocabulary, wordOf(token));
      return tensors.read(WORD_TABLE, id, id + 1);
    };
    return new Elmo({
      config,
      card: content.card ?? {},
      name: folder.pathname.split("/").at(-2),
      precision: lowest,
      vocabulary,
      read: wordOf,
      engine: new Engine(library, config, tensors, lowest),
      start: startState(start, tensors, config),
      softmax: softmaxFile && openSoftmax(library, softmaxFile, tensors, content.softmax, vocabulary, config),
      spelling: letters && new LetterSpelling(new Tensors(letters, LETTERS)),
      pooling: openPooling(content, "sentence_pooling", whitening, WHITENING, vocabulary, wordOf, config),
      trained: head && openPooling(content, "sentence_head", head, SENTENCE_HEAD, vocabulary, wordOf, config, tableRow),
      leftOutTrained: !trained && content.sentence_head !== undefined,
      hasPlainMeans: content.sentence_pooling === undefined && !vocabulary,
    });
  }

  /** Number of layers, including layer 0. */
  get nLayers() {
    return this.config.nLayers + 1;
  }

  /** Size of a vector. */
  get dim() {
    return this.config.outputDim;
  }

  /** Whether the model has a softmax and vocabulary, for `surprisal` and `substitutes`. */
  get canPredict() {
    return this.#softmax !== null;
  }

  /** Compute vectors; see index.d.ts. */
  embed(sentences, options) {
    return this.embedDocuments(alone(checkSentences(sentences)), options).flat();
  }

  /** Compute vectors of sentences in documents; see index.d.ts. */
  embedDocuments(documents, { layers = "all" } = {}) {
    const wanted = layers === "all" ? Array.from({ length: this.nLayers }, (_, layer) => layer) : layers;
    const isList = Array.isArray(wanted) && wanted.length && new Set(wanted).size === wanted.length;
    if (!isList || !wanted.every((layer) => Number.isInteger(layer) && layer >= 0 && layer < this.nLayers)) {
      throw new Error(`layers is ${JSON.stringify(layers)}. Choose 'all', or distinct numbers from 0 to ${this.nLayers - 1}.`);
    }
    const results = checkDocuments(documents).map(() => []);
    for (const { document, tokens, vectors } of this.#readSentences(documents, wanted, 1)) {
      results[document].push(new Layers(vectors, [wanted.length, tokens.length, this.dim]));
    }
    return results;
  }

  /** Compute the surprisal of every token; see index.d.ts. */
  surprisal(sentences, options) {
    return this.surprisalDocuments(alone(checkSentences(sentences)), options).flat();
  }

  /** Compute the surprisal of every token in documents; see index.d.ts. */
  surprisalDocuments(documents, { nExpected = 0, cache = false } = {}) {
    this.#checkPredicts();
    if (nExpected) checkCount("nExpected", nExpected);
    const settings = cacheSettings(cache);
    const results = checkDocuments(documents).map(() => []);
    const caches = new Map(); // of documents
    for (const { document, tokens, vectors } of this.#readSentences(documents, [this.config.nLayers], 0)) {
      if (settings && !caches.has(document)) caches.set(document, this.#documentCache(settings));
      results[document].push(this.#surprisalOf(tokens, vectors, nExpected, caches.get(document)));
    }
    return results;
  }

  #surprisalOf(tokens, top, nExpected, cache) {
    const read = this.#withBoundaries(tokens).map(this.#read);
    const ids = read.map((word) => this.vocabulary.id(word));
    const isUnknown = ids.map((id) => id === this.vocabulary.unknownId);
    const spelling = read.map((word, position) => (isUnknown[position] && word !== UNKNOWN ? this.#spell(word) : 0));
    const cached = cache && this.#readCache(cache, read, top);
    const nats = this.config.directions.map(() => new Float32Array(read.length).fill(NaN));
    const expected = nExpected ? [] : null;
    for (const [position, scores] of this.#scores(top, 0, read.length)) {
      const chances = cached?.expected.map((of) => of[position]);
      const byCache = chances?.map((one) => one?.probabilities.get(cached.numbers[position]) ?? 0);
      // An unknown word in a cache counts as a word of its own, whose nats include its letters.
      const spelled = isUnknown[position] && byCache?.some((probability) => probability > 0) ? spelling[position] : 0;
      scores.forEach((one, direction) => {
        if (!one) return;
        const ofModel = surprisalOf(one, ids[position]);
        nats[direction][position] = cached ? withCache(ofModel + spelled, chances[direction].weight, byCache[direction]) : ofModel;
      });
      spelling[position] -= spelled;
      if (expected && position > 0 && position < read.length - 1) {
        expected.push(this.#expectedWords(scores, this.expectations, nExpected, false, cache, chances));
      }
    }
    const total = (one) => one.reduce((sum, value) => sum + (Number.isNaN(value) ? 0 : value), 0);
    const words = [BEGIN_SENTENCE, ...tokens, END_SENTENCE];
    return { tokens: words, nats, isUnknown, spellingNats: spelling, totalNats: nats.map(total), ...(expected && { expected }) };
  }

  /** Return the nats of the letters of an unknown word. */
  #spell(word) {
    const { words, specialIds } = this.vocabulary;
    this.#spelling ??= new NgramSpelling(words.filter((_, id) => !specialIds.includes(id)));
    return this.#spelling.nats(word);
  }

  #documentCache(settings) {
    return new DocumentCache(settings, this.config.readBackward, (word) => this.#spell(word));
  }

  /** Read a sentence, `top` its top layer, into the cache of its document: what the cache expected, and the words' numbers there. */
  #readCache(cache, read, top) {
    const { vocabulary } = this;
    const words = read.map((word) => {
      const id = vocabulary.id(word);
      return id === vocabulary.unknownId && word !== UNKNOWN ? word : id;
    });
    return cache.read(words, (direction, position) => this.#predicting(top, direction, position));
  }

  /** Return what predicts a position in a direction, of the top layer of a sentence with boundaries; null at its edge. */
  #predicting(top, direction, position) {
    const { dim, outputDim, readBackward } = this.config;
    const from = readBackward[direction] ? position + 1 : position - 1;
    if (from < 0 || from >= top.length / outputDim) return null;
    const begin = from * outputDim + direction * dim;
    return top.subarray(begin, begin + dim);
  }

  /** Compute the surprisal of every word of raw texts, as written between spaces; see index.d.ts. */
  wordSurprisal(texts, { documents = false, cache = false, wrapped } = {}) {
    if (!Array.isArray(texts) || !texts.every((text) => typeof text === "string")) throw new TypeError("Expected an array of raw texts.");
    const split = texts.map((text) => textTokens(text, wrapped));
    const tokens = split.map((sentences) => sentences.map((sentence) => sentence.map(({ text }) => text)));
    if (cache && !documents) throw new Error("cache only works with documents. Also pass { documents: true }.");
    // All texts at once, because batches of many sentences take less time.
    const scored = this.surprisalDocuments(documents ? tokens : alone(tokens.flat()), { cache }).flat();
    return texts.flatMap((text, number) =>
      sumByWord(text, split[number], scored.splice(0, tokens[number].length), this.config.directions, number),
    );
  }

  /** Find the words that the model expects at a position; see index.d.ts. */
  substitutes(sentence, position, { direction, n = 10, specialWords = false, before = [], cache = false } = {}) {
    const [tokens] = checkSentences([sentence]);
    checkSentences(before);
    this.#checkPredicts();
    const chosen = direction ?? this.expectations.at(-1);
    if (!this.expectations.includes(chosen)) {
      throw new Error(`direction is '${chosen}'. Choose one of ${this.expectations.join(", ")}.`);
    }
    if (!(Number.isInteger(position) && position >= 0 && position < tokens.length)) {
      throw new RangeError(`position is ${position}, but the sentence has ${tokens.length} tokens, counted from 0.`);
    }
    checkCount("n", n);
    const settings = cacheSettings(cache);
    const words = settings && this.#documentCache(settings);
    let last = null; // the sentence's top layer, and what the cache expects in it
    for (const { tokens: own, vectors } of this.#readSentences([[...before, tokens]], [this.config.nLayers], 0)) {
      last = { vectors, cached: words && this.#readCache(words, this.#withBoundaries(own).map(this.#read), vectors) };
    }
    const [[, scores]] = this.#scores(last.vectors, position + 1, position + 2);
    const chances = last.cached?.expected.map((of) => of[position + 1]);
    return this.#expectedWords(scores, [chosen], n, specialWords, words, chances)[chosen];
  }

  /** The directions that `substitutes` supports: each direction, and both together if there are two. */
  get expectations() {
    const { directions } = this.config;
    return directions.length > 1 ? [...directions, "both"] : directions;
  }

  /** Compute one vector per sentence; see index.d.ts. */
  sentenceVectors(sentences, { trained = false } = {}) {
    const pooling = trained ? this.#trained : this.#pooling;
    if (!pooling) {
      throw new Error(
        this.#leftOutTrained
          ? "The head trained on pairs of sentences was not loaded. Load the model without { trained: false }."
          : "The model stores no head trained on pairs of sentences. Omit { trained: true }.",
      );
    }
    if (!trained && this.#hasPlainMeans) {
      warnOnce(`${this.name} has no vocab.txt to estimate word frequencies from, so its sentence vectors are plain means.`);
    }
    const checked = checkSentences(sentences).map((tokens) => pooling.fold(tokens));
    const layers = pooling.layers(this.nLayers);
    return this.embed(checked, { layers }).map(({ data }, at) => checkFinite(pooling.pool(checked[at], data, layers.length, this.dim)));
  }

  /** Read documents, and yield each sentence with its layers, `(wanted, positions, outputDim)`, without `nEdges` at both ends. */
  *#readSentences(documents, wanted, nEdges) {
    for (const batch of batches(documents)) {
      const { ids, rows } = this.#number(batch.flatMap(({ sentences }) => sentences));
      const own = batch.map(({ sentences }) => rows.splice(0, sentences.length));
      // A direction reads a document as one sequence, a backward LSTM from the end of its input. It never reads the boundary
      // after which it predicts nothing.
      const inputs = this.config.readBackward.map((backward) =>
        own.map((rows) => (backward ? [...rows].reverse().flatMap((row) => row.slice(1)) : rows.flatMap((row) => row.slice(0, -1)))),
      );
      const found = this.#engine.layers(ids, inputs, wanted, this.#starts);
      for (const [number, { document, sentences }] of batch.entries()) {
        const directions = found.map(({ layers }) => checkFinite(layers[number]));
        let first = 0;
        for (const tokens of sentences) {
          yield { document, tokens, vectors: this.#joined(directions, wanted.length, first, tokens.length + 2, nEdges) };
          first += tokens.length + 1;
        }
      }
    }
  }

  /** Concatenate the directions' results for a sentence; zero at the boundary that a direction does not read. */
  #joined(directions, nLayers, first, nPositions, nEdges) {
    const { dim, outputDim, readBackward } = this.config;
    const n = nPositions - 2 * nEdges;
    const joined = new Float32Array(nLayers * n * outputDim);
    directions.forEach((computed, direction) => {
      const nRead = computed.length / (nLayers * dim);
      const isBackward = readBackward[direction];
      const start = isBackward ? nRead - first - nPositions : first; // of the position of <S>, which a backward LSTM does not read
      const [from, to] = isBackward ? [Math.max(1, nEdges), nPositions - nEdges] : [nEdges, nPositions - Math.max(1, nEdges)];
      for (let layer = 0; layer < nLayers; layer++) {
        for (let position = from; position < to; position++) {
          const row = layer * nRead + start + position;
          joined.set(computed.subarray(row * dim, (row + 1) * dim), (layer * n + position - nEdges) * outputDim + direction * dim);
        }
      }
    });
    return joined;
  }

  /** Return a sentence with boundaries, in the case in which the model reads it. */
  #withBoundaries(tokens) {
    return [BEGIN_SENTENCE, ...this.#read.withCase(tokens), END_SENTENCE];
  }

  /** Add boundaries and number the distinct tokens. */
  #number(sentences) {
    const numbers = new Map();
    const rows = sentences.map((tokens) =>
      this.#withBoundaries(tokens).map((token) => {
        if (!numbers.has(token)) numbers.set(token, numbers.size);
        return numbers.get(token);
      }),
    );
    return { ids: this.#encode([...numbers.keys()]), rows };
  }

  /** Return the token layer's input: characters, preceded by the word's row if there is a word table. */
  #encode(tokens) {
    const { nTableWords, nIds, charCnn } = this.config;
    tokens = tokens.map(this.#read);
    const characters = encodeTokens(tokens, charCnn.maxChars);
    if (!nTableWords) return characters;
    const ids = new Int32Array(tokens.length * nIds);
    tokens.forEach((token, number) => {
      ids[number * nIds] = tableId(this.vocabulary, token);
      ids.set(characters.subarray(number * charCnn.maxChars, (number + 1) * charCnn.maxChars), number * nIds + 1);
    });
    return ids;
  }

  #statesAfterAnEmptySentence() {
    const { ids, rows } = this.#number([[]]);
    const { directions } = this.config;
    const found = this.#engine.layers(ids, directions.map(() => rows), [], directions.map(() => zeroState(this.config)));
    return found.map(({ state }) => state);
  }

  #checkPredicts() {
    if (!this.canPredict) throw new Error("The model has no softmax and vocabulary, or was loaded with { predicts: false }, so it cannot predict words.");
  }

  /**
   * Yield positions of a sentence with boundaries, and what each direction expects there: the forward LSTM has read the
   * tokens before, the backward LSTM those after. `top` is the top layer.
   */
  *#scores(top, first, last) {
    const { directions } = this.config;
    for (let start = first; start < last; start += POSITIONS_AT_ONCE) {
      const positions = Array.from({ length: Math.min(POSITIONS_AT_ONCE, last - start) }, (_, at) => start + at);
      const rows = [];
      const places = positions.map((position) =>
        directions.map((_, direction) => {
          const row = this.#predicting(top, direction, position);
          return row === null ? null : rows.push(row) - 1;
        }),
      );
      const scores = this.#softmax.multiply(rows).map((row) => new Scores(row, this.vocabulary.specialIds));
      for (const [at, position] of positions.entries()) {
        yield [position, places[at].map((place) => (place === null ? null : scores[place]))];
      }
    }
  }

  /** Find the words expected by each direction's scores and, if there is one, the cache. */
  #expectedWords(scores, directions, n, specialWords, cache, chances) {
    const { vocabulary } = this;
    const { unknownId, specialIds } = vocabulary;
    const mixed = cache ? scores.map((one, at) => one && new Scores(cache.mix(one, chances[at], unknownId), specialIds)) : scores;
    const found = directions.map((direction) => {
      const own = direction === "both" ? mixed : [mixed[this.config.directions.indexOf(direction)]];
      return [direction, bestWords(own, vocabulary, n, specialWords, cache?.strings)];
    });
    return Object.fromEntries(found);
  }
}

/** Return the nats of a word with a cache of weight w: -ln((1 - w) p_model + w p_cache). */
function withCache(nats, weight, probability) {
  return Math.max(0, -addLogs(Math.log1p(-weight) - nats, Math.log(weight * probability)));
}

/** Return the content of config.json; null if it is something else, such as a server's fallback page. */
function parsed(bytes, text) {
  try {
    return JSON.parse(text(bytes));
  } catch {
    return null;
  }
}

/** Return a word's row in the word table; 0 for words outside the table, of which only the spelling is used. */
function tableId(vocabulary, word) {
  const id = vocabulary.id(word);
  return id === vocabulary.unknownId ? 0 : id + 1;
}

/**
 * Open a whitening, or a head that was trained on pairs, which weights words, too, and may read their rows in the table of
 * words; without one, there are only settings.
 */
function openPooling(content, table, bytes, name, vocabulary, read, config, tableRow) {
  const nLayers = config.nLayers + 1;
  const settings = poolingSettings(content[table], table, nLayers, vocabulary !== null);
  if (!bytes) return new SentencePooling(settings, null, vocabulary, read);
  const tensors = new Tensors(bytes, name);
  const isHead = table === "sentence_head";
  const shape = tensors.shape("projection");
  const pooled = pooledDim(settings, nLayers, config.outputDim);
  const withRow = pooled + config.dim;
  const dim = isHead && config.nTableWords && shape?.[0] === withRow ? withRow : pooled;
  tensors.check({
    mean: [dim],
    projection: [dim, shape?.at(-1) ?? "any number"],
    ...(isHead && { word_weights: [vocabulary?.words.length ?? 0] }),
  });
  const map = {
    mean: tensors.read("mean"),
    projection: tensors.read("projection"),
    wordWeights: isHead ? tensors.read("word_weights") : null,
    tableRow: dim > pooled ? tableRow : null,
  };
  const wrong = map.wordWeights?.find((weight) => !(weight > 0));
  if (wrong !== undefined) {
    throw new Error(`${name} has the word weight ${wrong}; it must be above 0. Restore the model's original file.`);
  }
  return new SentencePooling(settings, map, vocabulary, read);
}

function openSoftmax(library, bytes, model, { kind, inner_dim: innerDim = 0 }, vocabulary, { dim }) {
  if (!["full", "tied"].includes(kind)) {
    throw new Error(
      `The softmax of this model is ${kind}, which the JavaScript package does not support. Load it with { predicts: false } ` +
        "for vectors, or use Python.",
    );
  }
  if (!vocabulary) throw new Error("The model has a softmax, but no vocab.txt with its words.");
  const nWords = vocabulary.words.length;
  const tensors = new Tensors(bytes, "softmax.safetensors");
  const isTied = kind === "tied";
  tensors.check({
    ...(!isTied && { weight: [nWords, dim] }),
    bias: [nWords],
    ...(innerDim && {
      "inner.expand.weight": [innerDim, dim],
      "inner.expand.bias": [innerDim],
      "inner.reduce.weight": [dim, innerDim],
      "inner.reduce.bias": [dim],
    }),
  });
  // Row 0 of a table shared with the softmax is not a word.
  const readRows = (first, last) =>
    isTied ? model.read(WORD_TABLE, first + 1, last + 1) : tensors.read("weight", first, last);
  const words = new PackedMatrix(library, readRows, tensors.read("bias"), dim);
  if (!innerDim) return words;
  const [expand, reduce] = [
    ["inner.expand", dim],
    ["inner.reduce", innerDim],
  ].map(([name, nInputs]) => {
    const rowsOf = (first, last) => tensors.read(`${name}.weight`, first, last);
    return new PackedMatrix(library, rowsOf, tensors.read(`${name}.bias`), nInputs);
  });
  return { multiply: (rows) => words.multiply(throughInnerLayer(rows, expand, reduce)) };
}

/** Add the outputs of a softmax's inner layer to the LSTM's outputs. */
function throughInnerLayer(rows, expand, reduce) {
  const units = expand.multiply(rows).map((row) => row.map((value) => Math.max(value, 0)));
  const changes = reduce.multiply(units);
  return rows.map((row, number) => row.map((value, at) => value + changes[number][at]));
}

const zeroState = ({ nDirections, nLayers, dim, hiddenDim }) => ({
  hidden: new Float32Array(nDirections * nLayers * dim),
  cell: new Float32Array(nDirections * nLayers * hiddenDim),
});

/** Return the state that every sentence starts from; null means the state after an empty sentence. */
function startState(start, tensors, config) {
  if (start === "zero") return zeroState(config);
  if (!tensors.has("warm_state.hidden")) return null;
  const { nDirections, nLayers, dim, hiddenDim } = config;
  const shape = (size) => [nDirections, nLayers, 1, size];
  tensors.check({ "warm_state.hidden": shape(dim), "warm_state.cell": shape(hiddenDim) });
  return { hidden: tensors.read("warm_state.hidden"), cell: tensors.read("warm_state.cell") };
}

function checkSentences(sentences) {
  const split = "Split raw text with tokenize(text).";
  if (!Array.isArray(sentences)) throw new TypeError(`Expected an array of tokenized sentences. ${split}`);
  for (const tokens of sentences) {
    if (!Array.isArray(tokens)) throw new TypeError(`Expected a sentence as an array of tokens, but got ${typeof tokens}. ${split}`);
    const wrong = tokens.findIndex((token) => typeof token !== "string"); // may be undefined
    if (wrong >= 0) throw new TypeError(`Expected tokens to be strings, but got ${typeof tokens[wrong]}.`);
  }
  return sentences;
}

function checkDocuments(documents) {
  if (!Array.isArray(documents)) throw new TypeError("Expected an array of documents (arrays of tokenized sentences).");
  documents.forEach(checkSentences);
  return documents;
}

/** Convert each sentence to a document. */
const alone = (sentences) => sentences.map((tokens) => [tokens]);

/** Yield groups of documents that are computed together, in order: their indices and sentences. */
function* batches(documents) {
  let batch = [];
  let nPositions = 0;
  for (const [document, sentences] of documents.entries()) {
    if (!sentences.length) continue;
    const size = sentences.reduce((sum, { length }) => sum + length + 1, 0);
    if (batch.length && nPositions + size > BATCH_TOKENS) {
      yield batch;
      [batch, nPositions] = [[], 0];
    }
    batch.push({ document, sentences });
    nPositions += size;
  }
  if (batch.length) yield batch;
}

function checkFinite(numbers) {
  for (let at = 0; at < numbers.length; at++) {
    if (!Number.isFinite(numbers[at])) throw new Error("The model computes NaN or infinity: its weights are too large.");
  }
  return numbers;
}
