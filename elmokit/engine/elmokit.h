/* elmokit: contextual word vectors from bidirectional LSTM language models (ELMo) on a CPU, without gradients.

   This header is all that a program needs. Python's bindings are generated from it (`library.py` reads it), and bindings for
   any language that can call C can be, too.

   A model is packed once, from float32 weights that may be freed afterwards, and then computes batches of sentences. Its
   large layers are packed one at a time, so only one layer's weights are needed at a time. A packed model does not store the
   LSTM state, which is an argument and a result. Several threads may use one model at the same time. A sentence's vectors
   depend only on that sentence and its start state: not on the other sentences of a batch, their order, or the number of
   threads (a number below 1 means 1).

   Matrices are stored in row-major order, and numbers are float32 and int64_t unless stated otherwise. Functions that can
   fail return one of the reasons below; 0 means success. */

#ifndef ELMOKIT_H
#define ELMOKIT_H

#include <stdint.h>

#if defined(_WIN32)
#define ELMOKIT_API __declspec(dllexport)
#else
#define ELMOKIT_API __attribute__((visibility("default")))
#endif

/* The number of a precision of packed weights, given its name: "float32", "bfloat16", "int8" or another one in
   `engine/precision.py`; -1 for an unknown name. More precise ones have lower numbers. Sums, states and outputs are float32
   in every precision. */
ELMOKIT_API int64_t elmokit_precision(const char *name);

/* Reasons for failure. */
enum {
    ELMOKIT_NO_MEMORY = 1,
    ELMOKIT_BAD_SIZES = 2, /* sizes are not positive, exceed 2^28, or do not match */
    ELMOKIT_BAD_IDS = 3,   /* an id is not a row of its table */
    ELMOKIT_BAD_LAYER = 4, /* a layer to pack does not exist or is already packed, or one to compute is not packed yet */
};

/* The token layer: a word table, a char CNN, or both, whose features are then concatenated and projected. Sizes and pointers
   of missing parts are 0. */
typedef struct {
    int64_t n_words;                 /* rows of the word table, including row 0 ("no token") */
    int64_t word_dim;
    const float *words;              /* (n_words, word_dim); or NULL, and the two below */
    const int8_t *word_integers;     /* (n_words, word_dim): the table as integers, to be multiplied by ... */
    const float *word_scales;        /* (n_words): ... the scale of each row */
    int64_t n_characters;            /* rows of the character table, including row 0 */
    int64_t character_dim;
    const float *characters;         /* (n_characters, character_dim) */
    int64_t n_convolutions;
    const int64_t *widths;           /* of each convolution */
    const int64_t *n_filters;        /* of each convolution */
    const float *const *filters;     /* for each convolution (n_filters, character_dim, width) */
    const float *const *filter_biases;
    int64_t uses_tanh;               /* whether the convolutions' activation is tanh; otherwise, relu */
    int64_t n_highways;              /* `elmokit_pack_highway` packs their weights */
    const float *projection;         /* (output_dim, word_dim + sum of n_filters), or NULL */
    const float *projection_bias;
    int64_t output_dim;
} elmokit_token_weights;

/* The sizes of the LSTM layers of all directions. */
typedef struct {
    int64_t n_directions;
    const int64_t *reads_backward;   /* for each direction, whether it reads sentences backward */
    int64_t n_layers;                /* of each direction */
    int64_t dim;                     /* of the inputs and outputs of every layer */
    int64_t hidden_dim;
    float cell_clip;                 /* maximum magnitude of cells and outputs; INFINITY for none */
    float output_clip;
    int64_t adds_inputs;             /* whether layers other than the first add their inputs to their outputs */
} elmokit_lstm_sizes;

/* A sentence of a batch. */
typedef struct {
    int64_t length;                  /* positions, including boundaries */
    const int64_t *words;            /* (length): the row of the batch's vectors for each position */
    const int64_t *places;           /* (length): where to write the layers of each position; NULL for 0, 1, 2, ... */
    float *layers;                   /* place 0 of the first requested layer */
    int64_t layer_stride;            /* numbers between two layers */
} elmokit_row;

/* A batch of sentences. A state consists of each layer's last output, (directions, layers, n_rows, dim), and its cells,
   (directions, layers, n_rows, hidden_dim). */
typedef struct {
    int64_t n_rows;
    const elmokit_row *rows;
    const float *vectors;            /* token vectors, (words, dim) */
    const int64_t *slots;            /* (n_layers + 1): where to write each layer in `layers`, layer 0 first; -1 to omit it */
    int64_t place_stride;            /* numbers between two places in a layer */
    int64_t n_edges;                 /* number of positions to omit at each end of each sentence */
    int64_t first_direction;         /* the directions to compute: from this one ... */
    int64_t last_direction;          /* ... up to, but not including, this one */
    int64_t start_rows;              /* rows of the start state: n_rows, or 1 if all rows start from the same state */
    const float *start_hidden;
    const float *start_cell;
    float *end_hidden;              /* the state after each row; NULL if it is not wanted */
    float *end_cell;
} elmokit_batch;

/* The precision that computes each part of a model, by number. */
typedef struct {
    int64_t token_layer;
    int64_t lstm;
} elmokit_kernels;

/* Choose the precisions that are fastest on this processor and at least as precise as the lowest allowed one. n_weights:
   number of weights of an LSTM layer, not counting its projection. */
ELMOKIT_API void elmokit_choose_kernels(int64_t lowest_precision, int64_t n_weights, elmokit_kernels *kernels);

/* A packed token layer. */
typedef struct elmokit_tokens elmokit_tokens;

/* Pack a token layer, except its highways. Return 0 and the layer, which must be freed with `elmokit_close_tokens`, or a
   reason for failure. */
ELMOKIT_API int64_t elmokit_open_tokens(const elmokit_token_weights *weights, int64_t lowest_precision,
                                        elmokit_tokens **tokens);

/* Pack the weights of one highway layer: those of the transformed branch and of its gate. All highways must be packed, in
   any order, before tokens are computed. Weights: (n, n) for n features of the convolutions; biases: (n). */
ELMOKIT_API int64_t elmokit_pack_highway(elmokit_tokens *tokens, int64_t highway, const float *transform,
                                         const float *transform_bias, const float *gate, const float *gate_bias);
ELMOKIT_API void elmokit_close_tokens(elmokit_tokens *tokens);
ELMOKIT_API int64_t elmokit_tokens_bytes(const elmokit_tokens *tokens);

/* Compute the context-free vectors of tokens, (n_tokens, output_dim).

   ids: (n_tokens, n_ids): each token's word id, its char ids, or both in this order. There must be at least as many
   characters as the widest convolution spans; those after a token's end are all equal. */
ELMOKIT_API int64_t elmokit_token_vectors(const elmokit_tokens *tokens, int64_t n_threads, int64_t n_tokens,
                                          int64_t n_ids, const int64_t *ids, float *vectors);

/* Packed LSTM layers. */
typedef struct elmokit_lstm elmokit_lstm;

/* Allocate the LSTM layers of all directions. Return 0 and the layers, which must be freed with `elmokit_close_lstm`, or a
   reason for failure. */
ELMOKIT_API int64_t elmokit_open_lstm(const elmokit_lstm_sizes *sizes, int64_t lowest_precision, elmokit_lstm **lstm);

/* Pack the weights of one layer. All layers must be packed, in any order, before a batch is computed.

   weight: (4 * hidden_dim, 2 * dim), blocks i, g, f, o, with columns of the input, then of the output; bias: (4 *
   hidden_dim), without the 1 that the forget gate adds; projection: (dim, hidden_dim), or NULL for none if hidden_dim equals
   dim. */
ELMOKIT_API int64_t elmokit_pack_layer(elmokit_lstm *lstm, int64_t direction, int64_t layer, const float *weight,
                                       const float *bias, const float *projection);
ELMOKIT_API void elmokit_close_lstm(elmokit_lstm *lstm);
ELMOKIT_API int64_t elmokit_lstm_bytes(const elmokit_lstm *lstm);

/* Compute the layers of a batch, with the vectors of all directions concatenated. Layer 0 repeats the token vector once per
   direction. */
ELMOKIT_API int64_t elmokit_layers(elmokit_lstm *lstm, int64_t n_threads, const elmokit_batch *batch);

/* A packed matrix, for a linear map of vectors: outputs = weight inputs + bias. */
typedef struct elmokit_matrix elmokit_matrix;

/* Pack a matrix in a precision. weight: (n_outputs, n_inputs); bias: (n_outputs), or NULL for zeros. */
ELMOKIT_API int64_t elmokit_open_matrix(int64_t precision, int64_t n_outputs, int64_t n_inputs, const float *weight,
                                        const float *bias, elmokit_matrix **packed);
ELMOKIT_API void elmokit_close_matrix(elmokit_matrix *packed);

/* outputs: (n_rows, n_outputs). */
ELMOKIT_API int64_t elmokit_multiply(const elmokit_matrix *packed, int64_t n_threads, int64_t n_rows,
                                     const float *inputs, float *outputs);

/* For scoring with a softmax of weight (n_words, dim) and bias (n_words): compute the log-sum-exp of each row's scores, for
   rows of an LSTM's top layer, (n_rows, dim), without storing the scores. A precision below float32 is used if the processor
   multiplies bfloat16 numbers. */
ELMOKIT_API int64_t elmokit_log_sum_exp(int64_t n_threads, int64_t lowest_precision, int64_t n_rows, const float *rows,
                                        int64_t dim, const float *weight, const float *bias, int64_t n_words,
                                        double *result);

/* Compute one word's score for each row. */
ELMOKIT_API void elmokit_word_scores(int64_t n_rows, const float *rows, int64_t dim, const float *weight,
                                     const float *bias, const int64_t *words, double *scores);

/* Columns in a panel of packed weights: 2 vectors of this library's instruction set. */
ELMOKIT_API int64_t elmokit_panel_width(void);

/* Whether this process may use the instructions of this library. */
ELMOKIT_API int64_t elmokit_is_permitted(void);

/* Whether this library multiplies bfloat16 numbers, which training in bfloat16 needs. */
ELMOKIT_API int64_t elmokit_has_bfloat16(void);

#endif
