/* A matrix of weights packed for products with rows of inputs, in one of the precisions of `packed_product.h`. */

#ifndef ELMOKIT_MATRIX_H
#define ELMOKIT_MATRIX_H

#include "packed_product.h"
#include "threads.h"

typedef struct {
    int precision;
    int64_t n_inputs, n_outputs;
    float *panels; /* NULL if there is no such matrix */
    float *bias;   /* padded to whole panels; NULL for none */
} matrix;

/* Rows of inputs: floats, or rounded rows if the precision rounds them. */
typedef struct {
    const void *rows;
    int64_t row_bytes;
} inputs;

/* Allocate memory at a multiple of 64 bytes, in large pages if the system supports them; NULL if there is not enough. */
void *take_memory(int64_t n_bytes);
void give_memory(void *memory);

/* Lay out consecutive pieces of memory: return where this one begins, and move `at` to the next multiple of 64. */
INLINE char *place(char **at, int64_t n_bytes) {
    char *here = *at;
    *at += (n_bytes + 63) / 64 * 64;
    return here;
}

/* Ask the system for large pages, before the first write: it chooses a page's size when the page is first touched. */
void ask_for_large_pages(void *memory, int64_t n_bytes);

/* The number of a precision, or -1. */
int precision_number(const char *name);

/* Pack a matrix whose rows, n_given numbers each, may be anywhere in memory. NULL rows, and the inputs from n_given to
   n_inputs, are zeros. Return whether there was enough memory. */
int pack_matrix(int precision, int64_t n_outputs, int64_t n_inputs, const float *const *rows, int64_t n_given,
                matrix *packed);

/* Pack a panel of float32: PANEL columns, each of which is a row of n_given weights, or NULL for zeros. The inputs from
   n_given to n_inputs are zeros, too. */
void pack_float_panel(const float *const *columns, int64_t n_given, int64_t n_inputs, int64_t ahead, float *panel);

/* Give a packed matrix a bias: `n` numbers. */
int pack_bias(const float *bias, int64_t n, matrix *packed);

/* Copy bfloat16 weights as float32. */
int widen_matrix(const matrix *packed, matrix *widened);

int64_t matrix_bytes(const matrix *packed);
void free_matrix(matrix *packed);

/* Round a thread's part of some rows for a product, if its precision rounds. The caller must put a barrier after it. */
inputs round_part(const member *me, int precision, int64_t n_rows, const float *rows, int64_t n_inputs, char *rounded);

/* to.sums[rows][n_panels * PANEL] += inputs x panels. `after`: weights that are read next; or NULL, for one row and weights
   that are already in the cache. */
void add_product(int precision, int64_t n_rows, int n_panels, inputs from, const float *weights, int64_t n_inputs, target to,
                 const float *after);

/* outputs[rows][n_outputs] = clip(bias + rows x matrix), a thread's part of the columns. */
void multiply_part(const member *me, const matrix *by, int64_t n_rows, inputs from, float *outputs,
                   int64_t output_stride, float bound);

/* The whole product, including the barriers that it needs. `rounded` has room for the rounded rows. */
void multiply_rows(const member *me, const matrix *by, int64_t n_rows, const float *rows, float *outputs,
                   int64_t output_stride, char *rounded);

#endif
