/* The functions for training, which Python calls on the memory of PyTorch's tensors: forward passes that keep what the
   gradient needs, and backward passes. They are not part of the public header `elmokit.h`, because they depend on this
   package's layers and training.

   Matrices are stored in row-major order, and numbers are float32 and int64_t unless stated otherwise. n_threads: the
   maximum number of threads. No result depends on how many of them are free; `elmokit_convolve_backward` and
   `elmokit_softmax_loss` sum in an order that depends on n_threads itself. No function keeps memory: the caller provides it.
   */

#ifndef ELMOKIT_TRAINING_H
#define ELMOKIT_TRAINING_H

#include "elmokit.h"

/* Ask the system for large pages, for memory that has not been written yet. */
ELMOKIT_API void elmokit_large_pages(void *memory, int64_t n_bytes);

/* A call of an LSTM layer in one direction, in float32 and without gradients, with the current weights. */
typedef struct {
    int64_t n_rows;
    int64_t n_steps;
    int64_t input_dim;
    int64_t hidden_dim;
    int64_t dim;
    int64_t reverse;           /* whether to read from the last step to the first */
    int64_t adds_inputs;       /* whether to add the inputs to the outputs, but not to the state */
    int64_t input_stride;      /* numbers between two rows of `input_weight`, which need not be contiguous */
    int64_t state_stride;      /* the same for `state_weight` */
    int64_t swaps_gates;       /* whether the blocks of both weights are in the order i, f, g, o */
    float cell_clip;           /* maximum magnitude of cells and outputs; INFINITY for none */
    float output_clip;
    const float *inputs;       /* (n_rows, n_steps, input_dim) */
    const int8_t *mask;        /* (n_rows, n_steps): 0 gives zeros and keeps the state; NULL if every step is real */
    const float *hidden;       /* (n_rows, dim), the state before the first step */
    const float *cell;         /* (n_rows, hidden_dim) */
    const float *input_weight; /* (4 * hidden_dim, input_dim), blocks i, g, f, o unless `swaps_gates` */
    const float *state_weight; /* (4 * hidden_dim, dim) */
    const float *bias;         /* (4 * hidden_dim), blocks i, g, f, o, without the 1 that the forget gate adds */
    const float *projection;   /* (dim, hidden_dim); or NULL, for hidden_dim equal to dim */
    float *outputs;            /* written: (n_rows, n_steps, dim) */
    float *hidden_after;       /* written: the state after each row's last step, shaped like `hidden` ... */
    float *cell_after;         /* ... and `cell` */
} elmokit_layer_call;

/* The number of bytes of memory that a call needs, aligned to 64 bytes. */
ELMOKIT_API int64_t elmokit_layer_bytes(const elmokit_layer_call *given);

/* Compute the layer, with the same bits as `elmokit_layers`. */
ELMOKIT_API void elmokit_run_layer(int64_t n_threads, const elmokit_layer_call *given, char *memory);

/* The number of bytes of memory that `elmokit_linear_rows` needs, aligned to 64 bytes. */
ELMOKIT_API int64_t elmokit_linear_rows_bytes(int64_t n_threads, int64_t n_inputs);

/* outputs = inputs x weight^T + bias, in float32: each row has the same bits in any batch. weight: (n_outputs, n_inputs).
   bias: (n_outputs), or NULL. */
ELMOKIT_API void elmokit_linear_rows(int64_t n_threads, int64_t n_rows, int64_t n_inputs, int64_t n_outputs,
                                     const float *inputs, const float *weight, const float *bias, char *memory,
                                     float *outputs);

/* A convolution over the characters of tokens in float32, without gradients, with the current weights. */
typedef struct {
    int64_t n_tokens;
    int64_t n_columns;       /* characters of a token */
    int64_t n_characters;    /* rows of `characters` */
    int64_t dim;
    int64_t n_filters;
    int64_t width;           /* at most n_columns */
    const int64_t *ids;      /* (n_tokens, n_columns), rows of `characters`; tokens end in padding (equal columns) */
    const float *characters; /* (n_characters, dim) */
    const float *weight;     /* (n_filters, dim, width) */
    const float *bias;       /* (n_filters) */
    float *maxima;           /* written: the largest response of each filter, (n_tokens, n_filters) */
} elmokit_convolution_call;

/* The number of bytes of memory that a convolution needs, aligned to 64 bytes. */
ELMOKIT_API int64_t elmokit_convolution_bytes(int64_t n_threads, const elmokit_convolution_call *given);

/* Compute the convolution, with the same bits as the engine's token layer in float32. Return whether all ids are rows of
   `characters`; if not, nothing is written. */
ELMOKIT_API int64_t elmokit_run_convolution(int64_t n_threads, const elmokit_convolution_call *given, char *memory);

/* The elementwise part of one LSTM training step, in float32.

   gates: (n_rows, 4 * hidden_dim), the sums of i, g, f, o; replaced with their activations. cell_before: (n_rows,
   hidden_dim). Written, in the same shape: the new cell, its tanh (`tanh_cells`), and the tanh times the activation of o
   (`outputs`). cell_clip: maximum magnitude of cells; INFINITY for none. */
ELMOKIT_API void elmokit_training_step(int64_t n_threads, int64_t n_rows, int64_t hidden_dim, float *gates,
                                       const float *cell_before, float *cell_after, float *tanh_cells, float *outputs,
                                       float cell_clip);

/* Compute gate_gradient, the gradient of the gate sums, from the gradient of the outputs.

   cell_gradient: the gradient that later steps send to the new cell; replaced with the gradient of the old cell. The other
   arguments are as the forward pass left them. */
ELMOKIT_API void elmokit_training_step_backward(int64_t n_threads, int64_t n_rows, int64_t hidden_dim,
                                                const float *gradient, const float *gates, const float *cell_before,
                                                const float *cell_after, const float *tanh_cells, float *cell_gradient,
                                                float *gate_gradient, float cell_clip);

/* Pack the filters of a convolution for `elmokit_convolve`. weight: (n_filters, dim, width), as in PyTorch. Written: the
   panels, (panels, width * dim, panel width), and the bias, padded to whole panels. */
ELMOKIT_API void elmokit_pack_filters(int64_t n_filters, int64_t dim, int64_t width, const float *weight,
                                      const float *bias, float *panels, float *padded_bias);

/* The maximum of each filter over the windows of each token, for one convolution over characters in float32.

   characters: tokens that begin `stride` numbers apart; a window begins every `dim` numbers and has n_inputs of them.
   n_windows: how many windows of each token to use. panels: the filters as packed weights, (panels, n_inputs, panel width).
   bias: padded to whole panels. Written: pooled, and the winning windows in 32 bits, (n_tokens, n_filters). */
ELMOKIT_API void elmokit_convolve(int64_t n_threads, int64_t n_tokens, const float *characters, int64_t stride,
                                  int64_t dim, const int64_t *n_windows, const float *panels, const float *bias,
                                  int64_t n_inputs, int64_t n_filters, float *pooled, int32_t *positions);

/* Add to the gradients of the characters and the weights.

   weights: (n_filters, n_inputs). gradient: of the maxima. weight_gradient: (n_threads, n_filters, n_inputs), which the
   caller sums, because all tokens add to the same weights. */
ELMOKIT_API void elmokit_convolve_backward(int64_t n_threads, int64_t n_tokens, const float *characters, int64_t stride,
                                           int64_t dim, const float *weights, int64_t n_inputs, int64_t n_filters,
                                           const int32_t *positions, const float *gradient, float *character_gradient,
                                           float *weight_gradient);

/* The same maxima, from a table of what a character adds to each filter at each place of its window.

   char_ids: (n_tokens, n_columns). table: (panels, n_rows, width, panel width). pooled and winners: (n_tokens, n_features);
   this convolution's n_filters columns begin where they point to. The last panel must have all its filters in the table,
   though not in the result. */
ELMOKIT_API void elmokit_table_convolve(int64_t n_threads, int64_t n_tokens, const int64_t *char_ids, int64_t n_columns,
                                        const int64_t *n_windows, int64_t width, const float *table, int64_t n_rows,
                                        const float *bias, int64_t n_filters, int64_t n_features, float *pooled,
                                        int32_t *winners);

/* Add to the gradient of the table. upstream: the gradient of `pooled`. */
ELMOKIT_API void elmokit_table_convolve_backward(int64_t n_threads, int64_t n_tokens, const int64_t *char_ids,
                                                 int64_t n_columns, int64_t width, int64_t n_rows, int64_t n_filters,
                                                 int64_t n_features, const int32_t *winners, const float *upstream,
                                                 float *table);

/* The elementwise part of a highway, n numbers: outputs = g * relu(transformed) + (1 - g) * inputs with g = sigmoid(gate).
   `gate` is replaced by g. */
ELMOKIT_API void elmokit_highway_forward(int64_t n_threads, int64_t n, const float *inputs, const float *transformed,
                                         float *gate, float *outputs);

/* Compute the gradients of the two sums, and the part of the inputs' gradient that does not pass through them. */
ELMOKIT_API void elmokit_highway_backward(int64_t n_threads, int64_t n, const float *upstream, const float *inputs,
                                          const float *transformed, const float *gate, float *transformed_gradient,
                                          float *gate_gradient, float *input_gradient);

/* The functions from here to `elmokit_softmax_loss` multiply numbers that are rounded to bfloat16. They compute nothing
   unless `elmokit_has_bfloat16`. `memory` is only used during the call. It must be aligned to 64 bytes, and so must `kept`.
   */

/* The number of bytes that a window needs: n_bytes[0] from its forward to its backward pass (`kept`), n_bytes[1] during the
   forward pass, n_bytes[2] during the backward pass. */
ELMOKIT_API void elmokit_window_bytes(int64_t n_threads, int64_t n_rows, int64_t n_steps, int64_t input_dim,
                                      int64_t hidden_dim, int64_t projection_dim, int64_t *n_bytes);

/* Run an LSTM layer on a window: compute outputs (n_rows, n_steps, projection_dim) from inputs (n_rows, n_steps, input_dim).

   weight: (4 * hidden_dim, input_dim + projection_dim), blocks i, g, f, o. bias: (4 * hidden_dim). projection:
   (projection_dim, hidden_dim). hidden: (n_rows, projection_dim), the state before the window. cell: (n_rows, hidden_dim),
   replaced with the cell after the window. */
ELMOKIT_API void elmokit_window_forward(int64_t n_threads, int64_t n_rows, int64_t n_steps, int64_t input_dim,
                                        int64_t hidden_dim, int64_t projection_dim, const float *inputs,
                                        const float *weight, const float *bias, const float *projection,
                                        const float *hidden, float *cell, float cell_clip, float projection_clip,
                                        char *kept, char *memory, float *outputs);

/* Compute the gradients of a window from `upstream`, the gradient of its outputs. All of them are overwritten, not added to.
   The gradient of the initial state is omitted, because backpropagation is truncated at windows. */
ELMOKIT_API void elmokit_window_backward(int64_t n_threads, int64_t n_rows, int64_t n_steps, int64_t input_dim,
                                         int64_t hidden_dim, int64_t projection_dim, const float *inputs,
                                         const float *hidden, const float *outputs, const float *upstream,
                                         float cell_clip, float projection_clip, char *kept, char *memory,
                                         float *input_gradient, float *weight, float *bias, float *projection);

/* The number of bytes of `memory` for both passes of a linear layer. */
ELMOKIT_API int64_t elmokit_linear_bytes(int64_t n_rows, int64_t n_inputs, int64_t n_outputs);

/* outputs = inputs x weight^T + bias; weight: (n_outputs, n_inputs). */
ELMOKIT_API void elmokit_linear_forward(int64_t n_threads, int64_t n_rows, int64_t n_inputs, int64_t n_outputs,
                                        const float *inputs, const float *weight, const float *bias, char *memory,
                                        float *outputs);

/* Compute the gradients from the gradient of the outputs. The inputs' gradient is added to if `adds` is set, and omitted if
   it is NULL. */
ELMOKIT_API void elmokit_linear_backward(int64_t n_threads, int64_t n_rows, int64_t n_inputs, int64_t n_outputs,
                                         const float *inputs, const float *weight, const float *upstream, char *memory,
                                         int64_t adds, float *input_gradient, float *weight_gradient,
                                         float *bias_gradient);

/* The number of bytes of `memory` for `elmokit_softmax_loss`. */
ELMOKIT_API int64_t elmokit_softmax_bytes(int64_t n_threads, int64_t n_rows, int64_t dim, int64_t n_words);

/* Compute the cross-entropy of each row, `losses`, and the gradients of their sum.

   A row's target has the score own_scores[row]. It competes with n_words other words, whose scores are the products of
   `hidden` (n_rows, dim) and `weight` (n_words, dim) plus `offsets`, except the word skipped[row], if that is not negative.
   */
ELMOKIT_API void elmokit_softmax_loss(int64_t n_threads, int64_t n_rows, int64_t dim, int64_t n_words,
                                      const float *hidden, const float *weight, const float *offsets,
                                      const float *own_scores, const int64_t *skipped, char *memory, float *losses,
                                      float *hidden_gradient, float *weight_gradient, float *offset_gradient,
                                      float *own_gradient);

/* outputs[i] = inputs[i] / (1 - probability), or 0 with that probability. The choice only depends on `seed` and i, so the
   gradient makes the same choice. */
ELMOKIT_API void elmokit_dropout(int64_t n_threads, int64_t n, int64_t seed, float probability, const float *inputs,
                                 float *outputs);

#endif
