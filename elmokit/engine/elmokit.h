/* elmokit: contextual word vectors from bidirectional LSTM language models (ELMo) on a CPU, without gradients.

   This header is all that a program needs. Python's bindings are made from it (`library.py` reads it), and so can those of
   any language that can call C.

   A model is packed once, from weights in float32 that may be freed afterwards, and then computes batches of sentences.
   Its large layers are packed one at a time, so no more than the weights of one are needed at the same time. A packed model
   has no state: the LSTM state goes in and comes out. Threads may use one model at the same time. The vectors of a sentence
   depend on that sentence, its start state and nothing else: not on the other sentences of a batch, not on their order, not
   on the number of threads, which is 1 where less is given.

   Matrices are stored row by row, and numbers are float32 and int64_t unless they say otherwise. Functions that can fail
   return one of the reasons below; 0 means success. */

#ifndef ELMOKIT_H
#define ELMOKIT_H

#include <stdint.h>

#if defined(_WIN32)
#define ELMOKIT_API __declspec(dllexport)
#else
#define ELMOKIT_API __attribute__((visibility("default")))
#endif

/* The number of a precision of packed weights, by its name: "float32", "bfloat16", "int8" or another one of
   `engine/precision.py`; -1 for an unknown name. The more precise one has the lower number. Sums, states and outputs are
   float32 in all of them. */
ELMOKIT_API int64_t elmokit_precision(const char *name);

/* Reasons for a failure. */
enum {
    ELMOKIT_NO_MEMORY = 1,
    ELMOKIT_BAD_SIZES = 2, /* sizes are not positive, are above 2^28, or do not fit together */
    ELMOKIT_BAD_IDS = 3,   /* an id is not a row of its table */
    ELMOKIT_BAD_LAYER = 4, /* a layer to pack does not exist or is packed already, or one to compute is not packed yet */
};

/* The token layer: a word table, a char CNN, or both, whose features are then concatenated and projected. Sizes and
   pointers of what a model lacks are 0. */
typedef struct {
    int64_t n_words;                 /* rows of the word table, row 0 ("no token") included */
    int64_t word_dim;
    const float *words;              /* (n_words, word_dim); or NULL, and the two below */
    const int8_t *word_integers;     /* (n_words, word_dim): the table as integers, each to be multiplied by ... */
    const float *word_scales;        /* (n_words): ... the scale of its row */
    int64_t n_characters;            /* rows of the character table, row 0 included */
    int64_t character_dim;
    const float *characters;         /* (n_characters, character_dim) */
    int64_t n_convolutions;
    const int64_t *widths;           /* of each convolution */
    const int64_t *n_filters;        /* of each convolution */
    const float *const *filters;     /* for each (n_filters, character_dim, width) */
    const float *const *filter_biases;
    int64_t uses_tanh;               /* the activation of the convolutions: tanh, or else relu */
    int64_t n_highways;              /* `elmokit_pack_highway` packs their weights */
    const float *projection;         /* (output_dim, word_dim + sum of n_filters), or NULL */
    const float *projection_bias;
    int64_t output_dim;
} elmokit_token_weights;

/* The sizes of the LSTM layers of all directions. */
typedef struct {
    int64_t n_directions;
    const int64_t *reads_backward;   /* for each direction, whether it reads sentences from their end */
    int64_t n_layers;                /* of each direction */
    int64_t dim;                     /* of the inputs and outputs of every layer */
    int64_t hidden_dim;
    float cell_clip;                 /* bounds on the magnitude of cells and outputs; INFINITY for none */
    float output_clip;
    int64_t adds_inputs;             /* whether each layer but the first adds its inputs to its outputs */
} elmokit_lstm_sizes;

/* A sentence of a batch. */
typedef struct {
    int64_t length;                  /* positions, boundaries included */
    const int64_t *words;            /* (length): for each position, a row of the batch's vectors */
    const int64_t *places;           /* (length): where the layers of each position go; NULL for 0, 1, 2, ... */
    float *layers;                   /* place 0 of the first requested layer */
    int64_t layer_stride;            /* numbers from a layer to the next */
} elmokit_row;

/* A batch of sentences. A state has each layer's last output, (directions, layers, n_rows, dim), and its
   cells, (directions, layers, n_rows, hidden_dim). */
typedef struct {
    int64_t n_rows;
    const elmokit_row *rows;
    const float *vectors;            /* token vectors, (words, dim) */
    const int64_t *slots;            /* (n_layers + 1): where each layer goes in `layers`, layer 0 first; -1 for nowhere */
    int64_t place_stride;            /* numbers from a place to the next, in each layer */
    int64_t n_edges;                 /* positions at both ends of each sentence whose layers are not wanted */
    int64_t first_direction;         /* the directions to compute: from this one ... */
    int64_t last_direction;          /* ... to the one before this */
    int64_t start_rows;              /* rows of the start state: n_rows, or 1 for a state that all rows start from */
    const float *start_hidden;
    const float *start_cell;
    float *end_hidden;              /* the state after each row; NULL if it is not wanted */
    float *end_cell;
} elmokit_batch;

/* What computes each part of a model, by the number of its precision. */
typedef struct {
    int64_t token_layer;
    int64_t lstm;
} elmokit_kernels;

/* The precisions that compute layers fastest on this processor, of those that are at least as exact as the lowest one that
   is accepted. n_weights: of an LSTM layer, without its projection. */
ELMOKIT_API void elmokit_choose_kernels(int64_t lowest_precision, int64_t n_weights, elmokit_kernels *kernels);

/* A packed token layer. */
typedef struct elmokit_tokens elmokit_tokens;

/* Pack a token layer, but for its highways. Return 0 and the layer, which `elmokit_close_tokens` frees, or the reason why
   not. */
ELMOKIT_API int64_t elmokit_open_tokens(const elmokit_token_weights *weights, int64_t lowest_precision,
                                        elmokit_tokens **tokens);

/* Pack the weights of one highway layer: of the branch that is transformed, and of its gate. All are packed, in any order,
   before the first tokens are computed. Weights: (n, n) for n features of the convolutions; biases: (n). */
ELMOKIT_API int64_t elmokit_pack_highway(elmokit_tokens *tokens, int64_t highway, const float *transform,
                                         const float *transform_bias, const float *gate, const float *gate_bias);
ELMOKIT_API void elmokit_close_tokens(elmokit_tokens *tokens);
ELMOKIT_API int64_t elmokit_tokens_bytes(const elmokit_tokens *tokens);

/* Compute the context-free vectors of tokens, (n_tokens, output_dim).

   ids: (n_tokens, n_ids), for each token its word id, its char ids, or both in this order. Characters fill the widest
   convolution at least; those after a token's end are all equal. */
ELMOKIT_API int64_t elmokit_token_vectors(const elmokit_tokens *tokens, int64_t n_threads, int64_t n_tokens,
                                          int64_t n_ids, const int64_t *ids, float *vectors);

/* Packed LSTM layers. */
typedef struct elmokit_lstm elmokit_lstm;

/* Make room for the LSTM layers of all directions. Return 0 and the layers, which `elmokit_close_lstm` frees, or the reason
   why not. */
ELMOKIT_API int64_t elmokit_open_lstm(const elmokit_lstm_sizes *sizes, int64_t lowest_precision, elmokit_lstm **lstm);

/* Pack the weights of one layer. All layers are packed, in any order, before the first batch is computed.

   weight: (4 * hidden_dim, 2 * dim), blocks i, g, f, o, and columns of the input, then of the output; bias:
   (4 * hidden_dim), without the 1 that the forget gate adds; projection: (dim, hidden_dim), or NULL for none if hidden_dim
   equals dim. */
ELMOKIT_API int64_t elmokit_pack_layer(elmokit_lstm *lstm, int64_t direction, int64_t layer, const float *weight,
                                       const float *bias, const float *projection);
ELMOKIT_API void elmokit_close_lstm(elmokit_lstm *lstm);
ELMOKIT_API int64_t elmokit_lstm_bytes(const elmokit_lstm *lstm);

/* Compute the layers of a batch: in each, the vectors of all directions side by side. Layer 0 has the token vector once for
   every direction. */
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

/* For scoring with a softmax, weight (n_words, dim) and bias (n_words), and rows of an LSTM's top layer, (n_rows, dim):
   the logarithm of the sum of the exponentials of a row's scores, without storing the scores. A precision below float32 is
   used where the processor multiplies bfloat16 numbers. */
ELMOKIT_API int64_t elmokit_log_sum_exp(int64_t n_threads, int64_t lowest_precision, int64_t n_rows, const float *rows,
                                        int64_t dim, const float *weight, const float *bias, int64_t n_words,
                                        double *result);

/* The score of one word for each row. */
ELMOKIT_API void elmokit_word_scores(int64_t n_rows, const float *rows, int64_t dim, const float *weight,
                                     const float *bias, const int64_t *words, double *scores);

/* Columns of a panel of packed weights: 2 vectors of this library's instructions. */
ELMOKIT_API int64_t elmokit_panel_width(void);

/* Whether this process may use the instructions of this library. */
ELMOKIT_API int64_t elmokit_is_permitted(void);

/* Whether this library multiplies bfloat16 numbers, as training in bfloat16 needs. */
ELMOKIT_API int64_t elmokit_has_bfloat16(void);

#endif
