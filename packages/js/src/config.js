// The architecture of a model, from config.json.

const FORMAT_VERSION = 1;

/**
 * @typedef {Object} Config
 * @property {{filters: number[][], dim: number, nHighways: number, activation: string, maxChars: number, nCharacters: number}} charCnn
 * @property {number} dim Outputs of each direction.
 * @property {number} hiddenDim
 * @property {number} nLayers LSTM layers.
 * @property {number} nDirections
 * @property {boolean[]} readBackward For each direction.
 * @property {("forward"|"backward")[]} directions Their names.
 * @property {number} outputDim Of a vector: all directions side by side.
 * @property {number} cellClip
 * @property {number} outputClip
 * @property {boolean} skipConnections
 */

/**
 * Read the content of config.json.
 * @param {Object} content
 * @param {string} name For error messages.
 * @returns {Config}
 */
export function readConfig(content, name) {
  if (content.format !== "elmokit" || content.format_version !== FORMAT_VERSION) {
    throw new Error(
      `${name} is not the config.json of an elmokit model of version ${FORMAT_VERSION}. Convert other formats in Python: ` +
        "elmokit convert MODEL OUT.",
    );
  }
  const { bilm } = content;
  for (const [part, isThere] of [
    ["a model that reads word ids", bilm.n_words != null],
    ["a table of words next to the characters", bilm.word_features != null],
    ["a lexicon of its own", content.lexicon],
    ["an alignment with another model", content.alignment],
  ]) {
    if (isThere) throw new Error(`${name} describes ${part}, which the JavaScript package does not have. Use Python.`);
  }
  const cnn = bilm.char_cnn;
  const readBackward = bilm.bidirectional ? [false, true] : [bilm.backward_only];
  return {
    charCnn: {
      filters: cnn.filters,
      dim: cnn.char_dim,
      nHighways: cnn.n_highway,
      activation: cnn.activation,
      maxChars: cnn.max_chars,
      nCharacters: cnn.n_chars,
    },
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

/**
 * Return the shape of every tensor of a model, by its name in model.safetensors.
 * @param {Config} config
 * @returns {Object<string, number[]>}
 */
export function tensorShapes({ charCnn, dim, hiddenDim, nLayers, nDirections }) {
  const shapes = { "token_layer.char_embedding.weight": [charCnn.nCharacters + 1, charCnn.dim] };
  charCnn.filters.forEach(([width, count], number) => {
    shapes[`token_layer.convolutions.${number}.weight`] = [count, charCnn.dim, width];
    shapes[`token_layer.convolutions.${number}.bias`] = [count];
  });
  const nFeatures = charCnn.filters.reduce((sum, [, count]) => sum + count, 0);
  for (let number = 0; number < charCnn.nHighways; number++) {
    for (const part of ["transform", "gate"]) {
      shapes[`token_layer.highways.${number}.${part}.weight`] = [nFeatures, nFeatures];
      shapes[`token_layer.highways.${number}.${part}.bias`] = [nFeatures];
    }
  }
  if (nFeatures !== dim) {
    shapes["token_layer.projection.weight"] = [dim, nFeatures];
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
