// The files of a model: from a URL or a directory, and the tensors in safetensors files.

const IS_NODE = typeof process !== "undefined" && Boolean(process.versions?.node);
const SCALE = ".scale";

/** A file of a model that does not exist. */
export class MissingFileError extends Error {}

/**
 * Read a file.
 * @param {URL|string} where A URL, or in Node also a path.
 * @returns {Promise<Uint8Array>}
 */
export async function readBytes(where) {
  const url = toUrl(where);
  if (url.protocol === "file:") {
    const { readFile } = await import("node:fs/promises");
    try {
      return new Uint8Array(await readFile(url));
    } catch (error) {
      if (error.code !== "ENOENT" && error.code !== "ENOTDIR") throw error;
      throw new MissingFileError(`${shown(url)} does not exist.`);
    }
  }
  const response = await fetch(url);
  if (response.status === 404 || response.status === 403) throw new MissingFileError(`${url} does not exist.`);
  if (!response.ok) throw new Error(`${url} cannot be loaded: the server answered with status ${response.status}.`);
  return new Uint8Array(await response.arrayBuffer());
}

/**
 * Return a URL for use in messages: a file URL as its path.
 * @param {URL} url
 */
export const shown = (url) => (url.protocol === "file:" ? decodeURIComponent(url.pathname) : url.href);

/**
 * Return the URL of a directory, ending with a slash so that file names can be appended.
 * @param {URL|string} where
 */
export function directoryUrl(where) {
  const url = new URL(toUrl(where));
  if (!url.pathname.endsWith("/")) url.pathname += "/";
  return url;
}

function toUrl(where) {
  if (where instanceof URL) return where;
  if (typeof where !== "string") throw new TypeError(`Expected a URL or a path, but got ${typeof where}.`);
  if (URL.canParse?.(where) && !/^[a-z]:[\\/]/i.test(where)) return new URL(where); // not C:\models
  if (!IS_NODE) return new URL(where, globalThis.location?.href);
  const absolute = /^([a-z]:)?[\\/]/i.test(where) ? where : `${process.cwd()}/${where}`;
  const path = absolute.replaceAll("\\", "/").split("/").map(encodeURIComponent).join("/").replaceAll("%3A", ":");
  return new URL(`file://${path.startsWith("/") ? "" : "/"}${path}`);
}

/**
 * The tensors of a safetensors file, as numbers in float32. Weights may be stored as float32, float16, bfloat16, or 8-bit
 * integers with a scale per row.
 */
export class Tensors {
  #bytes;
  #entries;
  #first;

  /**
   * @param {Uint8Array} bytes The file.
   * @param {string} name For error messages.
   */
  constructor(bytes, name) {
    this.name = name;
    this.#bytes = bytes;
    try {
      const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
      const nHeader = Number(view.getBigUint64(0, true));
      this.#first = 8 + nHeader;
      this.#entries = JSON.parse(new TextDecoder().decode(bytes.subarray(8, this.#first)));
    } catch {
      throw this.#damaged("its header cannot be read");
    }
    delete this.#entries.__metadata__;
    for (const [tensor, { dtype, shape, data_offsets: [start, stop] }] of Object.entries(this.#entries)) {
      const size = BYTES[dtype];
      if (!size) throw new Error(`${name} stores ${tensor} as ${dtype}, which this package does not support.`);
      const n = shape.reduce((product, length) => product * length, 1);
      if (stop - start !== n * size || this.#first + stop > bytes.length) throw this.#damaged(`${tensor} is cut short`);
    }
  }

  #damaged(problem) {
    return new Error(`${this.name} is not a readable safetensors file (${problem}). Download or copy it again.`);
  }

  /** Whether a tensor exists. */
  has(tensor) {
    return tensor in this.#entries;
  }

  /**
   * Check that all tensors exist and have the shapes that the architecture needs, because the engine reads as many numbers as
   * the sizes say.
   * @param {Object<string, number[]>} shapes
   */
  check(shapes) {
    for (const [tensor, shape] of Object.entries(shapes)) {
      const found = this.#entries[tensor]?.shape;
      if (String(found) !== String(shape)) {
        throw new Error(
          `${this.name} has ${tensor} with the shape (${found ?? "missing"}), but config.json says (${shape}). Restore the ` +
            "model's original file.",
        );
      }
    }
  }

  /** Read a tensor, or return null. */
  readIfPresent(tensor) {
    return this.has(tensor) ? this.read(tensor) : null;
  }

  /** Return the shape of a tensor; undefined if it does not exist. */
  shape(tensor) {
    return this.#entries[tensor]?.shape;
  }

  /**
   * Read a tensor, or some of its rows, as float32 numbers.
   * @param {string} tensor
   * @param {number} [first] The first row.
   * @param {number} [last] The row after the last one.
   * @returns {Float32Array}
   */
  read(tensor, first = 0, last) {
    const { dtype, shape } = this.#entries[tensor];
    const nRows = shape[0] ?? 1;
    const width = shape.slice(1).reduce((product, length) => product * length, 1);
    const numbers = this.#numbers(tensor, first * width, ((last ?? nRows) - first) * width);
    if (dtype !== "I8") return check(numbers, tensor, this.name);
    const scales = this.#scales(tensor, first, numbers.length / width);
    for (let row = 0; row < scales.length; row++) {
      for (let at = row * width; at < (row + 1) * width; at++) numbers[at] *= scales[row];
    }
    return numbers;
  }

  /**
   * Read a tensor as integers and the scale of each row; null if it is stored as floating-point numbers.
   * @param {string} tensor
   * @returns {{integers: Int8Array, scales: Float32Array}|null}
   */
  integers(tensor) {
    const { dtype, shape, data_offsets: [start, stop] } = this.#entries[tensor];
    if (dtype !== "I8") return null;
    return { integers: new Int8Array(this.#bytes.slice(this.#first + start, this.#first + stop).buffer), scales: this.#scales(tensor, 0, shape[0]) };
  }

  #scales(tensor, first, n) {
    if (!this.has(tensor + SCALE)) throw this.#damaged(`the scales of ${tensor} are missing`);
    const scales = this.#numbers(tensor + SCALE, first, n);
    const wrong = scales.find((scale) => !(scale >= 0 && scale < Infinity));
    if (wrong !== undefined) throw this.#damaged(`a scale of ${tensor} is ${wrong}`);
    return scales;
  }

  #numbers(tensor, first, n) {
    const { dtype, data_offsets: [start] } = this.#entries[tensor];
    const from = this.#first + start + first * BYTES[dtype];
    // A copy, because a typed array must begin at a multiple of its size.
    return DECODERS[dtype](this.#bytes.slice(from, from + n * BYTES[dtype]).buffer);
  }
}

const BYTES = { F32: 4, F16: 2, BF16: 2, I8: 1 };
const DECODERS = {
  F32: (buffer) => new Float32Array(buffer),
  F16: (buffer) => Float32Array.from(new Uint16Array(buffer), fromFloat16),
  BF16: (buffer) => new Float32Array(Uint32Array.from(new Uint16Array(buffer), (bits) => bits << 16).buffer),
  I8: (buffer) => Float32Array.from(new Int8Array(buffer)),
};

function fromFloat16(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0x1f) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 25) * (1024 + fraction) : 2 ** -24 * fraction);
}

function check(numbers, tensor, name) {
  for (let at = 0; at < numbers.length; at++) {
    if (!Number.isFinite(numbers[at])) {
      throw new Error(`${name} has NaN or infinity in ${tensor}. Training diverged, or the file is damaged: copy it again.`);
    }
  }
  return numbers;
}
