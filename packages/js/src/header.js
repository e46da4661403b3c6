// What elmokit.h declares. Made by build.py.
// elmokit.wasm was made from C files with the digest a1a37db31850cde4.
export const CONSTANTS = {
  NO_MEMORY: 1,
  BAD_SIZES: 2,
  BAD_IDS: 3,
  BAD_LAYER: 4,
};
export const STRUCTS = {
  token_weights: [["n_words", "int64"], ["word_dim", "int64"], ["words", "pointer"], ["word_integers", "pointer"], ["word_scales", "pointer"], ["n_characters", "int64"], ["character_dim", "int64"], ["characters", "pointer"], ["n_convolutions", "int64"], ["widths", "pointer"], ["n_filters", "pointer"], ["filters", "pointer"], ["filter_biases", "pointer"], ["uses_tanh", "int64"], ["n_highways", "int64"], ["projection", "pointer"], ["projection_bias", "pointer"], ["output_dim", "int64"]],
  lstm_sizes: [["n_directions", "int64"], ["reads_backward", "pointer"], ["n_layers", "int64"], ["dim", "int64"], ["hidden_dim", "int64"], ["cell_clip", "float"], ["output_clip", "float"], ["adds_inputs", "int64"]],
  row: [["length", "int64"], ["words", "pointer"], ["places", "pointer"], ["layers", "pointer"], ["layer_stride", "int64"]],
  batch: [["n_rows", "int64"], ["rows", "pointer"], ["vectors", "pointer"], ["slots", "pointer"], ["place_stride", "int64"], ["n_edges", "int64"], ["first_direction", "int64"], ["last_direction", "int64"], ["start_rows", "int64"], ["start_hidden", "pointer"], ["start_cell", "pointer"], ["end_hidden", "pointer"], ["end_cell", "pointer"]],
  kernels: [["token_layer", "int64"], ["lstm", "int64"]],
};
export const FUNCTIONS = {
  precision: ["pointer"],
  choose_kernels: ["int64", "int64", "pointer"],
  open_tokens: ["pointer", "int64", "pointer"],
  pack_highway: ["pointer", "int64", "pointer", "pointer", "pointer", "pointer"],
  close_tokens: ["pointer"],
  tokens_bytes: ["pointer"],
  token_vectors: ["pointer", "int64", "int64", "int64", "pointer", "pointer"],
  open_lstm: ["pointer", "int64", "pointer"],
  pack_layer: ["pointer", "int64", "int64", "pointer", "pointer", "pointer"],
  close_lstm: ["pointer"],
  lstm_bytes: ["pointer"],
  layers: ["pointer", "int64", "pointer"],
  open_matrix: ["int64", "int64", "int64", "pointer", "pointer", "pointer"],
  close_matrix: ["pointer"],
  multiply: ["pointer", "int64", "int64", "pointer", "pointer"],
  log_sum_exp: ["int64", "int64", "int64", "pointer", "int64", "pointer", "pointer", "int64", "pointer"],
  word_scores: ["int64", "pointer", "int64", "pointer", "pointer", "pointer", "pointer"],
  panel_width: [],
  is_permitted: [],
  has_bfloat16: [],
};
