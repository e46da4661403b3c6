/* The loss of a softmax in training and its gradients in one pass, with products of bf16 tiles (`bfloat16_tiles.h`).

   PyTorch would write the scores of all positions (42 MB for 2,560 positions and 4,096 words) some ten times. Here the
   scores of 32 positions exist at a time, in the L2 cache, and leave it as probabilities in bf16, which are the factor of
   the gradient's products. The loss is a sum, so its gradient is known up to a factor while it is computed. */

#include <stdint.h>

#include "bfloat16_tiles.h"

/* Bytes of probabilities that are kept for the gradient of the weights; with more words, fewer positions at a time. */
enum { KEPT_BYTES = 1 << 25 };

#if HAS_BFLOAT16
typedef struct {
    char *hidden;        /* left: rows x dim */
    char *hidden_by_dim; /* left: dim x rows of a chunk */
    char *weight;        /* right: words x dim */
    char *weight_by_dim; /* right: dim x words */
    char *probabilities; /* right: words x rows of a chunk */
    char *of_rows;       /* for each thread, left: BLOCK rows x words */
    float *scores;       /* for each thread (BLOCK, padded words); later blocks of sums */
    float *totals;       /* for each thread (padded words) */
    char *end;
} softmax_memory;

/* Blocks of rows whose probabilities are kept together. */
INLINE long rows_at_once(long n_rows, long n_words) {
    const long n = KEPT_BYTES / (2 * TILE_SIZE * blocks(n_words));
    return n < 1 ? 1 : at_most(n, blocks(n_rows));
}

static softmax_memory softmax_parts(long n_threads, long n_rows, long dim, long n_words, char *at) {
    const long chunk = rows_at_once(n_rows, n_words), words = blocks(n_words), dims = blocks(dim);
    softmax_memory m;
    m.hidden = take(&at, 2 * TILE_SIZE * blocks(n_rows) * dims);
    m.hidden_by_dim = take(&at, 2 * TILE_SIZE * dims * chunk);
    m.weight = take(&at, 2 * TILE_SIZE * words * dims);
    m.weight_by_dim = take(&at, 2 * TILE_SIZE * words * dims);
    m.probabilities = take(&at, 2 * TILE_SIZE * words * chunk);
    m.of_rows = take(&at, n_threads * 2 * TILE_SIZE * words);
    m.scores = take(&at, n_threads * (long)sizeof(float) * BLOCK * BLOCK * (words > dims ? words : dims));
    m.totals = take(&at, n_threads * (long)sizeof(float) * BLOCK * words);
    m.end = at;
    return m;
}

INLINE float sum_of(vec value) {
    float sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += value[lane];
    return sum;
}

/* From the scores of a row to its probabilities, in place. Columns beyond n_words and the column `skipped` get 0. */
static void normalize_row(float *scores, long n_words, const float *offsets, float own_score, long skipped, float *loss,
                          float *own_gradient) {
    const float log2_e = 1.44269504f;
    vec largest = all(own_score);
    if (skipped >= 0) scores[skipped] = -INFINITY;
    for (long at = 0; at < n_words; at += LANES) {
        const long n = n_words - at;
        vec score = load(scores + at) + load_some(offsets + at, n);
        if (n < LANES)
            for (long lane = n; lane < LANES; lane++) score[lane] = -INFINITY;
        store(scores + at, score);
        /* A NaN wins and stays. */
        largest = choose((score > largest) | (score != score), score, largest);
    }
    float top = largest[0];
    for (int lane = 1; lane < LANES; lane++)
        if (largest[lane] > top || largest[lane] != largest[lane]) top = largest[lane];
    vec sum = {0};
    for (long at = 0; at < n_words; at += LANES) {
        const vec difference = load(scores + at) - top;
        const vec power = choose(difference == all(-INFINITY), (vec){0}, quick_power(log2_e * difference));
        store(scores + at, power);
        sum += power;
    }
    const float own = expf(own_score - top), total = sum_of(sum) + own, factor = 1.0f / total;
    *loss = logf(total) + top - own_score;
    *own_gradient = own * factor - 1.0f;
    for (long at = 0; at < n_words; at += LANES) store(scores + at, load(scores + at) * factor);
}

/* One block of rows: scores, losses, probabilities as both factors, and the gradient of the rows. */
static void softmax_rows(const softmax_memory *m, long block, long chunk_first, long chunk, long n_rows, long dim,
                         long n_words, const float *offsets, const float *own_scores, const int64_t *skipped, float *scores,
                         char *of_rows, float *totals, float *losses, float *own_gradient, float *hidden_gradient) {
    const long words = blocks(n_words), dims = blocks(dim), width = words * BLOCK;
    for (long word = 0; word < words; word++)
        add_block(0, m->hidden + block * 2 * dims * TILE_SIZE, dims * TILE_SIZE, m->weight + word * 2 * dims * TILE_SIZE,
                  dims * TILE_SIZE, dims, scores + word * BLOCK, width, NULL);
    for (long r = 0; r < BLOCK; r++) {
        const long row = block * BLOCK + r;
        if (row < n_rows) {
            normalize_row(scores + r * width, n_words, offsets, own_scores[row], skipped[row], losses + row,
                          own_gradient + row);
            /* Only whole vectors were written; the rest of the last block is padding, too. */
            const long end = (n_words + LANES - 1) / LANES * LANES;
            memset(scores + r * width + end, 0, (width - end) * sizeof(float));
        } else
            memset(scores + r * width, 0, width * sizeof(float));
    }
    for (long at = 0; at < width; at += LANES) {
        const long tile = at / LANES;
        char *pairs = m->probabilities + (tile * chunk + block - chunk_first) * TILE_SIZE;
        vec total = load(totals + at);
        for (long r = 0; r < BLOCK; r += 2) {
            const vec first = load(scores + r * width + at), second = load(scores + (r + 1) * width + at);
            const ivec both = round_pairs(first, second);
            memcpy(pairs + r / 2 * TILE_BYTES, &both, sizeof both);
            total += first + second;
        }
        store(totals + at, total);
    }
    for (long r = 0; r < BLOCK; r++)
        for (long word = 0; word < words; word++) {
            const float *from = scores + r * width + word * BLOCK;
            const ivec row = round_row(load(from), load(from + LANES));
            memcpy(of_rows + (r / 16 * words + word) * TILE_SIZE + r % 16 * TILE_BYTES, &row, sizeof row);
        }
    for (long part = 0; part < dims; part++) {
        add_block(0, of_rows, words * TILE_SIZE, m->weight_by_dim + part * 2 * words * TILE_SIZE, words * TILE_SIZE, words,
                  scores, BLOCK, NULL);
        for (long row = block * BLOCK; row < at_most(n_rows, (block + 1) * BLOCK); row++)
            memcpy(hidden_gradient + row * dim + part * BLOCK, scores + row % BLOCK * BLOCK,
                   at_most(dim - part * BLOCK, BLOCK) * sizeof(float));
    }
}
#endif

long elmokit_softmax_bytes(long n_threads, long n_rows, long dim, long n_words) {
#if HAS_BFLOAT16
    return softmax_parts(n_threads, n_rows, dim, n_words, NULL).end - (char *)NULL;
#else
    return (void)n_threads, (void)n_rows, (void)dim, (void)n_words, 0;
#endif
}

/* Compute the cross-entropy of each row, `losses`, and the gradients of their sum.

   A row's right word has the score own_scores[row]; it competes with n_words others, whose scores are the products of
   `hidden` (n_rows, dim) and `weight` (n_words, dim) plus `offsets`, but for the word `skipped`, if that is not negative. */
void elmokit_softmax_loss(long n_threads, long n_rows, long dim, long n_words, const float *hidden, const float *weight,
                          const float *offsets, const float *own_scores, const int64_t *skipped, char *memory,
                          float *losses, float *hidden_gradient, float *weight_gradient, float *offset_gradient,
                          float *own_gradient) {
#if HAS_BFLOAT16
    const softmax_memory m = softmax_parts(n_threads, n_rows, dim, n_words, memory);
    const long chunk = rows_at_once(n_rows, n_words), words = blocks(n_words), dims = blocks(dim), width = words * BLOCK;
    long n_used = 1;
#pragma omp parallel num_threads(n_threads) if (n_threads > 1)
    {
        long thread = 0, n_here = 1;
#ifdef _OPENMP
        thread = omp_get_thread_num(), n_here = omp_get_num_threads();
#endif
        if (thread == 0) n_used = n_here;
        float *scores = m.scores + thread * BLOCK * BLOCK * (words > dims ? words : dims), *totals = m.totals + thread * width;
        char *of_rows = m.of_rows + thread * 2 * TILE_SIZE * words;
        memset(totals, 0, width * sizeof(float));
        use_whole_tiles();
        round_factor(LEFT, 1, hidden, dim, n_rows, dim, thread, n_here, m.hidden);
        round_factor(RIGHT, 1, weight, dim, n_words, dim, thread, n_here, m.weight);
        round_factor(RIGHT, 0, weight, dim, dim, n_words, thread, n_here, m.weight_by_dim);
        for (long first = 0; first < blocks(n_rows); first += chunk) {
            const long n = at_most(blocks(n_rows) - first, chunk), n_rows_here = at_most(n_rows - first * BLOCK, n * BLOCK);
            round_factor(LEFT, 0, hidden + first * BLOCK * dim, dim, dim, n_rows_here, thread, n_here, m.hidden_by_dim);
#pragma omp barrier
            for (long block = first + n * thread / n_here; block < first + n * (thread + 1) / n_here; block++)
                softmax_rows(&m, block, first, n, n_rows, dim, n_words, offsets, own_scores, skipped, scores, of_rows,
                             totals, losses, own_gradient, hidden_gradient);
#pragma omp barrier
            for (long word = words * thread / n_here; word < words * (thread + 1) / n_here; word++) {
                sum_in_chunks(m.hidden_by_dim, dims, m.probabilities + word * 2 * n * TILE_SIZE, 1, n, scores);
                for (long part = 0; part < dims; part++)
                    store_transposed(first > 0, scores + part * BLOCK * BLOCK, weight_gradient + word * BLOCK * dim + part * BLOCK,
                                     dim, n_words - word * BLOCK, dim - part * BLOCK);
            }
#pragma omp barrier
        }
        release_tiles();
    }
    /* In the order of the threads, so that equal runs get equal bits. */
    for (long word = 0; word < n_words; word++) {
        float total = 0;
        for (long thread = 0; thread < n_used; thread++) total += m.totals[thread * width + word];
        offset_gradient[word] = total;
    }
#else
    (void)n_threads, (void)n_rows, (void)dim, (void)n_words, (void)hidden, (void)weight, (void)offsets, (void)own_scores;
    (void)skipped, (void)memory, (void)losses, (void)hidden_gradient, (void)weight_gradient, (void)offset_gradient;
    (void)own_gradient;
#endif
}
