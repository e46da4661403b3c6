// The C functions of the engine, compiled to WebAssembly, and the packed weights of one model.

import { charsPrefix, WORD_TABLE } from "./config.js";
import { CONSTANTS, FUNCTIONS, STRUCTS } from "./header.js";
import { readBytes } from "./files.js";

const SIZES = { pointer: 4, int64: 8, float: 4 };
const ONE_THREAD = 1;
const ROWS_AT_ONCE = 4096; // of a softmax

let compiled = null; // the module, compiled once for all models

/**
 * Start the engine, with its own memory.
 * @param {ArrayBuffer|Uint8Array|URL|string} [source] The WebAssembly file, or its location; by default, this package's file.
 * @returns {Promise<Library>}
 */
export async function openLibrary(source) {
  if (!source) compiled ??= compileOwn();
  const module = await (source ? compile(source) : compiled);
  const instance = await WebAssembly.instantiate(module, {});
  instance.exports._initialize();
  return new Library(instance.exports);
}

async function compileOwn() {
  try {
    return await compile(new URL("./elmokit.wasm", import.meta.url));
  } catch (error) {
    compiled = null; // the next call tries again
    throw error;
  }
}

async function compile(source) {
  const bytes = source instanceof ArrayBuffer || ArrayBuffer.isView(source) ? source : await readBytes(source);
  try {
    return await WebAssembly.compile(bytes);
  } catch (error) {
    throw new Error(
      `The engine, elmokit.wasm, cannot be compiled (${error.message}). It needs WebAssembly with 128-bit SIMD.`,
    );
  }
}

/** The functions of `elmokit.h`, named without `elmokit_`, and their memory. */
export class Library {
  constructor(exports) {
    this.exports = exports;
    for (const [name, kinds] of Object.entries(FUNCTIONS)) {
      const called = exports[`elmokit_${name}`];
      this[name] = (...given) => Number(called(...given.map((value, at) => (kinds[at] === "int64" ? BigInt(value) : value))) ?? 0);
    }
  }

  /** Call a function with an arena, whose memory is freed when the function returns. */
  within(work) {
    const arena = new Arena(this.exports);
    try {
      return work(arena);
    } finally {
      arena.release();
    }
  }

  /** Return the number that a C function wrote to an address. */
  pointerAt(address) {
    return new DataView(this.exports.memory.buffer).getUint32(address, true);
  }

  /** Copy numbers out of the engine's memory. */
  floats(address, n) {
    return new Float32Array(this.exports.memory.buffer, address, n).slice();
  }

  /** Throw the error for a C function's return code; 0 means success. */
  check(reason) {
    if (!reason) return;
    const name = Object.keys(CONSTANTS).find((key) => CONSTANTS[key] === reason);
    if (name === "NO_MEMORY") throw new RangeError("There is not enough memory for the model or the sentences.");
    throw new Error(`The engine rejects the model or the sentences: ${name ?? reason}.`);
  }
}

/** Memory for the arguments of some calls. */
class Arena {
  #exports;
  #taken = [];

  constructor(exports) {
    this.#exports = exports;
  }

  take(nBytes) {
    const address = this.#exports.malloc(Math.max(8, nBytes));
    if (!address) throw new RangeError("There is not enough memory for the model or the sentences.");
    this.#taken.push(address);
    return address;
  }

  release() {
    for (const address of this.#taken.splice(0)) this.#exports.free(address);
  }

  /** @param {ArrayLike<number>|null|undefined} numbers null gives a null pointer. */
  floats(numbers) {
    if (!numbers) return 0;
    const address = this.take(4 * numbers.length);
    new Float32Array(this.#exports.memory.buffer, address, numbers.length).set(numbers);
    return address;
  }

  /** @param {Int8Array|Uint8Array} numbers */
  bytes(numbers) {
    const address = this.take(numbers.length);
    new Int8Array(this.#exports.memory.buffer, address, numbers.length).set(numbers);
    return address;
  }

  /** 64-bit integers. */
  ids(numbers) {
    const address = this.take(8 * numbers.length);
    const halves = new Int32Array(this.#exports.memory.buffer, address, 2 * numbers.length);
    for (let at = 0; at < numbers.length; at++) {
      halves[2 * at] = numbers[at];
      halves[2 * at + 1] = numbers[at] < 0 ? -1 : 0;
    }
    return address;
  }

  pointers(addresses) {
    const address = this.take(4 * addresses.length);
    new Uint32Array(this.#exports.memory.buffer, address, addresses.length).set(addresses);
    return address;
  }

  /** An array of structs. Missing fields are 0. */
  structs(name, listed) {
    const { size, fields } = layout(name);
    const address = this.take(size * listed.length);
    const view = new DataView(this.#exports.memory.buffer, address, size * listed.length);
    const write = {
      pointer: (at, value) => view.setUint32(at, value, true),
      int64: (at, value) => view.setBigInt64(at, BigInt(value), true),
      float: (at, value) => view.setFloat32(at, value, true),
    };
    listed.forEach((values, number) => {
      for (const { name: field, kind, at } of fields) write[kind](number * size + at, values[field] ?? 0);
    });
    return address;
  }
}

/** The offsets of a struct's fields in C: each is a multiple of its size, and the struct's size one of the largest. */
function layout(name) {
  let end = 0;
  const fields = STRUCTS[name].map(([field, kind]) => {
    const at = Math.ceil(end / SIZES[kind]) * SIZES[kind];
    end = at + SIZES[kind];
    return { name: field, kind, at };
  });
  const alignment = Math.max(...fields.map(({ kind }) => SIZES[kind]));
  return { size: Math.ceil(end / alignment) * alignment, fields };
}

/** Copy the word table into the engine's memory, as integers if it is stored as integers. */
function packTable(tensors, arena) {
  const { integers, scales } = tensors.integers(WORD_TABLE) ?? {};
  if (!integers) return { words: arena.floats(tensors.read(WORD_TABLE)) };
  return { word_integers: arena.bytes(integers), word_scales: arena.floats(scales) };
}

/** The packed token layer and LSTM layers of a biLM. */
export class Engine {
  #library;
  #config;
  #tokens;
  #lstm;

  /**
   * @param {Library} library
   * @param {import("./config.js").Config} config
   * @param {import("./files.js").Tensors} tensors Each is read once, when it is packed.
   * @param {string} precision The minimum precision of the weights.
   */
  constructor(library, config, tensors, precision) {
    this.#library = library;
    this.#config = config;
    const number = library.within((arena) => {
      return library.precision(arena.bytes(new TextEncoder().encode(`${precision}\0`)));
    });
    if (number < 0) throw new Error(`precision is '${precision}'. Use 'float32', 'bfloat16', 'int8' or 'int7'.`);
    // The largest layers come first: their float32 weights are freed before the packed weights reach their full size.
    this.#lstm = this.#packLayers(tensors, number);
    this.#tokens = this.#packTokens(tensors, number);
  }

  #open(kind, struct, precision, arena) {
    const handle = arena.take(4);
    this.#library.check(this.#library[`open_${kind}`](struct, precision, handle));
    return this.#library.pointerAt(handle);
  }

  #packLayers(tensors, precision) {
    const { nDirections, readBackward, nLayers, dim, hiddenDim, cellClip, outputClip, skipConnections } = this.#config;
    const library = this.#library;
    const lstm = library.within((arena) => {
      const sizes = arena.structs("lstm_sizes", [
        {
          n_directions: nDirections,
          reads_backward: arena.ids(readBackward.map(Number)),
          n_layers: nLayers,
          dim,
          hidden_dim: hiddenDim,
          cell_clip: cellClip,
          output_clip: outputClip,
          adds_inputs: Number(skipConnections),
        },
      ]);
      return this.#open("lstm", sizes, precision, arena);
    });
    for (let direction = 0; direction < nDirections; direction++) {
      for (let layer = 0; layer < nLayers; layer++) {
        const read = (name) => tensors.readIfPresent(`directions.${direction}.layers.${layer}.${name}`);
        library.within((arena) => {
          const parts = ["weight", "bias", "projection"].map((name) => arena.floats(read(name)));
          library.check(library.pack_layer(lstm, direction, layer, ...parts));
        });
      }
    }
    return lstm;
  }

  #packTokens(tensors, precision) {
    const { charCnn, nTableWords, dim } = this.#config;
    const library = this.#library;
    const read = (name) => tensors.readIfPresent(`${charsPrefix(nTableWords)}${name}`);
    const tokens = library.within((arena) => {
      const floats = (name) => arena.floats(read(name));
      const shared = (name) => arena.floats(tensors.readIfPresent(name));
      const each = (part) => arena.pointers(charCnn.filters.map((_, number) => floats(`convolutions.${number}.${part}`)));
      const weights = arena.structs("token_weights", [
        {
          ...(nTableWords && { n_words: nTableWords + 1, word_dim: dim, ...packTable(tensors, arena) }),
          n_characters: charCnn.nCharacters + 1,
          character_dim: charCnn.dim,
          characters: floats("char_embedding.weight"),
          n_convolutions: charCnn.filters.length,
          widths: arena.ids(charCnn.filters.map(([width]) => width)),
          n_filters: arena.ids(charCnn.filters.map(([, count]) => count)),
          filters: each("weight"),
          filter_biases: each("bias"),
          uses_tanh: Number(charCnn.activation === "tanh"),
          n_highways: charCnn.nHighways,
          projection: shared("token_layer.projection.weight"),
          projection_bias: shared("token_layer.projection.bias"),
          output_dim: dim,
        },
      ]);
      return this.#open("tokens", weights, precision, arena);
    });
    for (let number = 0; number < charCnn.nHighways; number++) {
      library.within((arena) => {
        const parts = ["transform.weight", "transform.bias", "gate.weight", "gate.bias"];
        const packed = parts.map((part) => arena.floats(read(`highways.${number}.${part}`)));
        library.check(library.pack_highway(tokens, number, ...packed));
      });
    }
    return tokens;
  }

  /**
   * Compute the layers of a batch of sentences.
   * @param {Int32Array} ids Of each distinct token its row in the table of words, if there is one, and its characters; one token
   *   after the other.
   * @param {number[][][]} inputs For each direction and sentence, the distinct token at each position that the direction reads.
   * @param {number[]} wanted The layers to return, in this order.
   * @param {State[]} starts For each direction the state before each sentence, of one row, of which it uses its own part.
   * @returns {{layers: Float32Array[], state: State}[]} For each direction: of each sentence `(wanted, positions, dim)`, and the
   *   state after the sentences, in which only its own part counts.
   */
  layers(ids, inputs, wanted, starts) {
    const { nIds, dim } = this.#config;
    const library = this.#library;
    return library.within((arena) => {
      const nTokens = ids.length / nIds;
      const vectors = arena.take(4 * nTokens * dim);
      library.check(library.token_vectors(this.#tokens, ONE_THREAD, nTokens, nIds, arena.ids(ids), vectors));
      return inputs.map((sentences, direction) => this.#direction(direction, vectors, sentences, wanted, starts[direction]));
    });
  }

  #direction(direction, vectors, sentences, wanted, start) {
    const { nDirections, nLayers, dim, hiddenDim } = this.#config;
    const library = this.#library;
    return library.within((arena) => {
      const slots = Array.from({ length: nLayers + 1 }, (_, layer) => wanted.indexOf(layer));
      const outputs = sentences.map(({ length }) => arena.take(4 * wanted.length * length * dim));
      const rows = sentences.map((words, number) => ({
        length: words.length,
        words: arena.ids(words),
        layers: outputs[number] - 4 * direction * dim, // C writes a direction next to those before it
        layer_stride: words.length * dim,
      }));
      const nStates = nDirections * nLayers * sentences.length;
      const [hidden, cell] = [arena.take(4 * nStates * dim), arena.take(4 * nStates * hiddenDim)];
      const batch = arena.structs("batch", [
        {
          n_rows: rows.length,
          rows: arena.structs("row", rows),
          vectors,
          slots: arena.ids(slots),
          place_stride: dim,
          n_edges: 0,
          first_direction: direction,
          last_direction: direction + 1,
          start_rows: 1,
          start_hidden: arena.floats(start.hidden),
          start_cell: arena.floats(start.cell),
          end_hidden: hidden,
          end_cell: cell,
        },
      ]);
      library.check(library.layers(this.#lstm, ONE_THREAD, batch));
      return {
        layers: outputs.map((address, number) => library.floats(address, wanted.length * sentences[number].length * dim)),
        state: { hidden: library.floats(hidden, nStates * dim), cell: library.floats(cell, nStates * hiddenDim) },
      };
    });
  }
}

/**
 * The LSTM state before or after some sentences, with one row for all of them or a row for each: each layer's last output
 * `(directions, layers, rows, dim)` and cells `(directions, layers, rows, hiddenDim)`.
 * @typedef {{hidden: Float32Array, cell: Float32Array}} State
 */

/** A softmax matrix, packed in parts of a few thousand words, so its float32 weights take little memory. */
export class PackedMatrix {
  #library;
  #parts = [];

  /**
   * @param {Library} library
   * @param {(first: number, last: number) => Float32Array} readRows Returns some rows, each of which is read once.
   * @param {Float32Array} bias A number for each row.
   * @param {number} nInputs
   */
  constructor(library, readRows, bias, nInputs) {
    this.#library = library;
    this.nRows = bias.length;
    for (let first = 0; first < this.nRows; first += ROWS_AT_ONCE) {
      const n = Math.min(ROWS_AT_ONCE, this.nRows - first);
      const packed = library.within((arena) => {
        const weight = arena.floats(readRows(first, first + n));
        const handle = arena.take(4);
        const precision = 0; // float32: the highest precision has the lowest number
        library.check(
          library.open_matrix(precision, n, nInputs, weight, arena.floats(bias.subarray(first, first + n)), handle),
        );
        return library.pointerAt(handle);
      });
      this.#parts.push({ packed, first, n });
    }
  }

  /**
   * Multiply rows.
   * @param {Float32Array[]} rows
   * @returns {Float32Array[]} For each row its products with all rows of the matrix.
   */
  multiply(rows) {
    const library = this.#library;
    const results = rows.map(() => new Float32Array(this.nRows));
    if (!rows.length) return results;
    library.within((arena) => {
      const inputs = arena.take(4 * rows.length * rows[0].length);
      const view = new Float32Array(library.exports.memory.buffer, inputs, rows.length * rows[0].length);
      rows.forEach((row, number) => view.set(row, number * row.length));
      const outputs = arena.take(4 * rows.length * Math.max(...this.#parts.map(({ n }) => n)));
      for (const { packed, first, n } of this.#parts) {
        library.check(library.multiply(packed, ONE_THREAD, rows.length, inputs, outputs));
        const products = new Float32Array(library.exports.memory.buffer, outputs, rows.length * n);
        results.forEach((result, number) => result.set(products.subarray(number * n, (number + 1) * n), first));
      }
    });
    return results;
  }
}
