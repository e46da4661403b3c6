/* The token layer, without gradients: maps a token's characters, its word id or both to a context-free vector. */

#ifndef ELMOKIT_TOKEN_LAYER_H
#define ELMOKIT_TOKEN_LAYER_H

#include "elmokit.h"
#include "matrix.h"

typedef struct {
    int64_t width, n_filters;
    float *table; /* see `fill_table`; NULL if it would be too large */
    float *bias;  /* padded to whole panels */
    matrix *by_place; /* (width): the filters' weights for a character at each place, to compute tables */
} convolution;

typedef struct {
    int64_t n_words, word_dim; /* the word table; 0 for none */
    float *words;
    int8_t *word_integers; /* the table is stored as floats, or as integers with a scale for each row */
    float *word_scales;
    int64_t n_characters, character_dim; /* 0 for a model that reads no characters */
    float *characters;
    int64_t n_convolutions, n_features; /* features: the filters of all convolutions */
    convolution *convolutions;
    int uses_tanh;
    int64_t n_highways;
    matrix *highways; /* without panels until packed; outputs: the transform, then the gate */
    matrix projection; /* without panels if there is none */
    int64_t output_dim;
    int precision; /* of the highways */
} token_layer;

/* Pack a token layer, except its highways. Return 0, or a reason for failure. */
int pack_token_layer(const elmokit_token_weights *given, int precision, token_layer *layer);

/* Pack a highway layer. Return 0, or a reason for failure. */
int pack_highway(int64_t number, const float *transform, const float *transform_bias, const float *gate,
                 const float *gate_bias, token_layer *layer);
int64_t token_layer_bytes(const token_layer *layer);
void free_token_layer(token_layer *layer);

typedef enum { NO_ACTIVATION, RELU, TANH } activation;

/* Compute the features of a panel of filters for all tokens: the activation of the maximum response over a token's windows,
   plus the bias. char_ids: (n_tokens, n_columns), rows of the table. table: what each character adds to each filter at each
   place of its window, (characters, width, PANEL). bias: (PANEL). features: n_filters columns of a matrix with n_features.
   */
void convolve_panel(int64_t n_tokens, const int64_t *char_ids, int64_t n_columns, int64_t width, const float *table,
                    const float *bias, int64_t n_filters, activation after, float *features, int64_t n_features);

/* Compute the vectors of tokens, (n_tokens, output_dim), from (n_tokens, n_ids) ids. Return 0, or a reason for failure. */
int run_token_layer(const token_layer *layer, int64_t n_threads, int64_t n_tokens, int64_t n_ids, const int64_t *ids,
                    float *vectors);

#endif
