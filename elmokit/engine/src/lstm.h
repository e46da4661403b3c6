/* One LSTM layer in one direction, without gradients. */

#ifndef ELMOKIT_LSTM_H
#define ELMOKIT_LSTM_H

#include "matrix.h"

/* Gate sums come in blocks of PANEL units, with i, g, f, o in each block, so one thread has everything that a unit's step
   needs. A block is GATES panels of the weights. */
typedef struct {
    int precision;      /* of the rounded weights; may be higher than requested */
    int64_t input_dim, hidden_dim, output_dim;
    int64_t padded_dim; /* hidden units, including the padding of the last block */
    float cell_clip, output_clip;
    matrix from_input;  /* with the bias */
    matrix from_output; /* the recurrent weights */
    matrix projection;  /* without panels if there is none */
} lstm_layer;

/* The order in which the tokens of some rows are computed: those of step 0, then those of step 1, and so on. Rows are sorted
   by descending length, so the rows of a step are the first rows of the previous step. */
typedef struct {
    int64_t n_steps, n_rows, n_tokens;
    const int64_t *step_rows; /* (n_steps): non-increasing, at least 1 */
} schedule;

/* Memory for running a layer, shared by every thread of the team. */
typedef struct {
    float *gates, *units, *cells;
    char *rounded_inputs, *rounded_state, *rounded_units;
} lstm_memory;

/* The packed bias of a gate (i, g, f, o), including the 1 that the forget gate adds. */
float gate_bias(int64_t gate, float bias);

/* Pack a layer. weight: (4 * hidden_dim, input_dim + output_dim), blocks i, g, f, o; bias: (4 * hidden_dim), without the 1
   that the forget gate adds; projection: (output_dim, hidden_dim), or NULL. Return whether there was enough memory. */
int pack_lstm(int precision, int64_t input_dim, int64_t hidden_dim, int64_t output_dim, float cell_clip,
              float output_clip, const float *weight, const float *bias, const float *projection, lstm_layer *layer);

/* The same layer with its bfloat16 weights in float32. */
int widen_lstm(const lstm_layer *layer, lstm_layer *widened);

int64_t lstm_bytes(const lstm_layer *layer);
void free_lstm(lstm_layer *layer);

/* Lay out the memory for a run starting at `at`, and return its end; with at = NULL, the number of bytes. */
char *place_lstm_memory(const lstm_layer *layer, const schedule *order, char *at, lstm_memory *memory);

/* sums = the bias of a block of units and the product of n_rows inputs with its weights, (n_rows, GATES * PANEL). `after`:
   weights that are read next. */
void add_input_product(const matrix *weights, int64_t block, int64_t n_rows, inputs from, float *sums, const float *after);

/* Whether the input products of all steps are computed at once. The caller may then compute them itself, into memory->gates,
   (blocks, n_tokens, GATES * PANEL), and run the layer without the panels of `from_input`. */
int has_one_chunk(const lstm_layer *layer, const schedule *order);

/* Run a layer: from `rows`, (n_tokens, input_dim), and the initial state, (n_rows, output_dim) and memory->cells, compute
   `outputs`, (n_tokens, output_dim), and the cells after each row's last step. */
void run_lstm(const member *me, const lstm_layer *layer, const schedule *order, const float *rows, const float *state,
              float *outputs, const lstm_memory *memory);

#endif
