// The architecture of a model, from config.json.

const FORMAT_VERSION = 1;
/** The name of the word table in model.safetensors. Row 0 is not a word. */
export const WORD_TABLE = "token_layer.word_embedding.weight";

/**
 * @typedef {Object} Config
 * @property {{filters: number[][], dim: number, nHighways: number, activation: string, maxChars: number, nCharacters: number}} charCnn
 * @property {number} nTableWords Rows of a word table, tied to the softmax, that is used besides the characters; 0 for none.
 * @property {number} dim Size of each direction's outputs, and of a row of that table.
 * @property {number} nIds Ids per token: its row in that table, and its characters.
 * @property {number} hiddenDim
 * @property {number} nLayers LSTM layers.
 * @property {number} nDirections
 * @property {boolean[]} readBackward For each direction.
 * @property {("forward"|"backward")[]} directions Their names.
 * @property {number} outputDim Size of a vector, including all directions.
 * @property {number} cellClip
 * @property {number} outputClip
 * @property {boolean} skipConnections
 */

/**
 * Read the content of config.json.
 * @param {Object|null} content Null if it is not JSON.
 * @param {string} name For error messages.
 * @returns {Config}
 */
export function readConfig(content, name) {
  if (content?.format !== "elmokit" || content.format_version !== FORMAT_VERSION || !content.bilm) {
    throw new Error(
      `${name} is not the config.json of an elmokit model with format version ${FORMAT_VERSION}. Convert other formats in Python: ` +
        "elmokit convert MODEL OUT.",
    );
  }
  const { bilm } = content;
  for (const [part, isThere] of [
    ["a model that reads word ids", bilm.n_words != null],
    ["a word table without characters", bilm.word_features != null && bilm.char_cnn == null],
    ["a word table that the softmax does not share", (bilm.word_features?.word_dim ?? bilm.projection_dim) !== bilm.projection_dim],
    ["a lexicon", content.lexicon],
    ["an alignment with another model", content.alignment],
  ]) {
    if (isThere) throw new Error(`${name} describes ${part}, which the JavaScript package does not support. Use Python.`);
  }
  if (bilm.backward_only) throw new Error(`${name} describes a backward-only model, which is no longer supported.`);
  const cnn = bilm.char_cnn;
  const readBackward = bilm.bidirectional ? [false, true] : [false];
  return {
    charCnn: {
      filters: cnn.filters,
      dim: cnn.char_dim,
      nHighways: cnn.n_highway,
      activation: cnn.activation,
      maxChars: cnn.max_chars,
      nCharacters: cnn.n_chars,
    },
    nTableWords: bilm.word_features?.n_words ?? 0,
    nIds: cnn.max_chars + (bilm.word_features ? 1 : 0),
    dim: bilm.projection_dim,
    hiddenDim: bilm.hidden_dim,
    nLayers: bilm.n_layers,
    nDirections: readBackward.length,
    readBackward,
    directions: readBackward.map((backward) => (backward ? "backward" : "forward")),
    outputDim: readBackward.length * bilm.projection_dim,
    cellClip: bilm.cell_clip ?? Infinity,
    outputClip: bilm.projection_clip ?? Infinity,
    skipConnections: bilm.skip_connections,
  };
}

/** Return the prefix of the char CNN's tensors. */
export const charsPrefix = (nTableWords) => `token_layer.${nTableWords ? "chars." : ""}`;

/**
 * Return the shape of every tensor of a model, by its name in model.safetensors.
 * @param {Config} config
 * @returns {Object<string, number[]>}
 */
export function tensorShapes({ charCnn, nTableWords, dim, hiddenDim, nLayers, nDirections }) {
  const chars = charsPrefix(nTableWords);
  const shapes = { [`${chars}char_embedding.weight`]: [charCnn.nCharacters + 1, charCnn.dim] };
  charCnn.filters.forEach(([width, count], number) => {
    shapes[`${chars}convolutions.${number}.weight`] = [count, charCnn.dim, width];
    shapes[`${chars}convolutions.${number}.bias`] = [count];
  });
  const nFeatures = charCnn.filters.reduce((sum, [, count]) => sum + count, 0);
  for (let number = 0; number < charCnn.nHighways; number++) {
    for (const part of ["transform", "gate"]) {
      shapes[`${chars}highways.${number}.${part}.weight`] = [nFeatures, nFeatures];
      shapes[`${chars}highways.${number}.${part}.bias`] = [nFeatures];
    }
  }
  if (nTableWords) shapes[WORD_TABLE] = [nTableWords + 1, dim];
  if (nTableWords || nFeatures !== dim) {
    shapes["token_layer.projection.weight"] = [dim, nFeatures + (nTableWords ? dim : 0)];
    shapes["token_layer.projection.bias"] = [dim];
  }
  for (let direction = 0; direction < nDirections; direction++) {
    for (let layer = 0; layer < nLayers; layer++) {
      const prefix = `directions.${direction}.layers.${layer}`;
      shapes[`${prefix}.weight`] = [4 * hiddenDim, 2 * dim];
      shapes[`${prefix}.bias`] = [4 * hiddenDim];
      if (hiddenDim !== dim) shapes[`${prefix}.projection`] = [dim, hiddenDim];
    }
  }
  return shapes;
}
