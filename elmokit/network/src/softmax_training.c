/* A softmax's training loss and its gradients in one pass, with products of bf16 tiles (`bfloat16_tiles.h`).

   PyTorch would write the scores of all positions (42 MB for 2,560 positions and 4,096 words) about ten times. Here, the
   scores of 32 positions exist at a time, in the L2 cache, and are then stored as probabilities in bf16, which are a factor
   of the gradient's products. The loss is a sum, so its gradient is known up to a factor while it is computed. */

#include "bfloat16_tiles.h"
#include "threads.h"
#include "training.h"

/* The maximum size of the probabilities kept for the gradient of the weights, in bytes; with more words, fewer positions at
   a time. */
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
    float *totals;       /* for each part of the rows (padded words) */
    char *end;
} softmax_memory;

typedef struct {
    int64_t n_parts, n_rows, dim, n_words;
    const float *hidden, *weight, *offsets, *own_scores;
    const int64_t *skipped;
    float *losses, *hidden_gradient, *weight_gradient, *offset_gradient, *own_gradient;
    softmax_memory memory;
} softmax;

/* The number of row blocks whose probabilities are kept together. */
INLINE int64_t rows_at_once(int64_t n_rows, int64_t n_words) {
    const int64_t n = KEPT_BYTES / (2 * TILE_SIZE * blocks(n_words));
    return n < 1 ? 1 : at_most(n, blocks(n_rows));
}

static softmax_memory softmax_parts(int64_t n_threads, int64_t n_rows, int64_t dim, int64_t n_words, char *at) {
    const int64_t chunk = rows_at_once(n_rows, n_words), words = blocks(n_words), dims = blocks(dim);
    softmax_memory m;
    m.hidden = take(&at, 2 * TILE_SIZE * blocks(n_rows) * dims);
    m.hidden_by_dim = take(&at, 2 * TILE_SIZE * dims * chunk);
    m.weight = take(&at, 2 * TILE_SIZE * words * dims);
    m.weight_by_dim = take(&at, 2 * TILE_SIZE * words * dims);
    m.probabilities = take(&at, 2 * TILE_SIZE * words * chunk);
    m.of_rows = take(&at, n_threads * 2 * TILE_SIZE * words);
    m.scores = take(&at, n_threads * (int64_t)sizeof(float) * BLOCK * BLOCK * (words > dims ? words : dims));
    m.totals = take(&at, n_threads * (int64_t)sizeof(float) * BLOCK * words);
    m.end = at;
    return m;
}

INLINE float sum_of(vec value) {
    float sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += value[lane];
    return sum;
}

/* Convert a row's scores to probabilities, in place. Columns beyond n_words and the column `skipped` get 0. */
static void normalize_row(float *scores, int64_t n_words, const float *offsets, float own_score, int64_t skipped,
                          float *loss, float *own_gradient) {
    const float log2_e = 1.44269504f;
    vec largest = all(own_score);
    if (skipped >= 0) scores[skipped] = -INFINITY;
    for (int64_t at = 0; at < n_words; at += LANES) {
        const int64_t n = n_words - at;
        vec score = load(scores + at) + load_some(offsets + at, n);
        if (n < LANES)
            for (int64_t lane = n; lane < LANES; lane++) score[lane] = -INFINITY;
        store(scores + at, score);
        /* A NaN wins and is kept. */
        largest = choose((score > largest) | (score != score), score, largest);
    }
    float top = largest[0];
    for (int lane = 1; lane < LANES; lane++)
        if (largest[lane] > top || largest[lane] != largest[lane]) top = largest[lane];
    vec sum = {0};
    for (int64_t at = 0; at < n_words; at += LANES) {
        const vec difference = load(scores + at) - top;
        const vec power = choose(difference == all(-INFINITY), (vec){0}, quick_power(log2_e * difference));
        store(scores + at, power);
        sum += power;
    }
    const float own = expf(own_score - top), total = sum_of(sum) + own, factor = 1.0f / total;
    *loss = logf(total) + top - own_score;
    *own_gradient = own * factor - 1.0f;
    for (int64_t at = 0; at < n_words; at += LANES) store(scores + at, load(scores + at) * factor);
}

/* One block of rows: scores, losses, probabilities as both factors, and the gradient of the rows. */
static void softmax_rows(const softmax *call, int64_t block, int64_t chunk_first, int64_t chunk, float *scores,
                         char *of_rows, float *totals) {
    const softmax_memory *m = &call->memory;
    const int64_t n_rows = call->n_rows, dim = call->dim, n_words = call->n_words;
    const int64_t words = blocks(n_words), dims = blocks(dim), width = words * BLOCK;
    for (int64_t word = 0; word < words; word++)
        add_block(0, m->hidden + block * 2 * dims * TILE_SIZE, dims * TILE_SIZE, m->weight + word * 2 * dims * TILE_SIZE,
                  dims * TILE_SIZE, dims, scores + word * BLOCK, width, NULL);
    for (int64_t r = 0; r < BLOCK; r++) {
        const int64_t row = block * BLOCK + r;
        if (row < n_rows) {
            normalize_row(scores + r * width, n_words, call->offsets, call->own_scores[row], call->skipped[row],
                          call->losses + row, call->own_gradient + row);
            /* Only whole vectors were written; the rest of the last block is padding, too. */
            const int64_t end = (n_words + LANES - 1) / LANES * LANES;
            memset(scores + r * width + end, 0, (width - end) * sizeof(float));
        } else
            memset(scores + r * width, 0, width * sizeof(float));
    }
    for (int64_t at = 0; at < width; at += LANES) {
        const int64_t tile = at / LANES;
        char *pairs = m->probabilities + (tile * chunk + block - chunk_first) * TILE_SIZE;
        vec total = load(totals + at);
        for (int64_t r = 0; r < BLOCK; r += 2) {
            const vec first = load(scores + r * width + at), second = load(scores + (r + 1) * width + at);
            const ivec both = round_pairs(first, second);
            memcpy(pairs + r / 2 * TILE_BYTES, &both, sizeof both);
            total += first + second;
        }
        store(totals + at, total);
    }
    for (int64_t r = 0; r < BLOCK; r++)
        for (int64_t word = 0; word < words; word++) {
            const float *from = scores + r * width + word * BLOCK;
            const ivec row = round_row(load(from), load(from + LANES));
            memcpy(of_rows + (r / 16 * words + word) * TILE_SIZE + r % 16 * TILE_BYTES, &row, sizeof row);
        }
    for (int64_t part = 0; part < dims; part++) {
        add_block(0, of_rows, words * TILE_SIZE, m->weight_by_dim + part * 2 * words * TILE_SIZE, words * TILE_SIZE, words,
                  scores, BLOCK, NULL);
        for (int64_t row = block * BLOCK; row < at_most(n_rows, (block + 1) * BLOCK); row++)
            memcpy(call->hidden_gradient + row * dim + part * BLOCK, scores + row % BLOCK * BLOCK,
                   at_most(dim - part * BLOCK, BLOCK) * sizeof(float));
    }
}

/* The rows of a chunk are divided into parts, whose sums over rows are kept separately and added at the end. The number of
   parts is the requested number of threads, however many share them, so equal runs get equal bits. */
static void compute_softmax(const member *me, void *context) {
    const softmax *call = context;
    const softmax_memory *m = &call->memory;
    const int64_t n_rows = call->n_rows, dim = call->dim, n_words = call->n_words, n_parts = call->n_parts;
    const int64_t chunk = rows_at_once(n_rows, n_words), words = blocks(n_words), dims = blocks(dim), width = words * BLOCK;
    const int64_t thread = me->thread, n_threads = me->n_threads, first_part = first_of(me, n_parts);
    const int64_t last_part = last_of(me, n_parts);
    float *scores = m->scores + thread * BLOCK * BLOCK * (words > dims ? words : dims);
    char *of_rows = m->of_rows + thread * 2 * TILE_SIZE * words;
    memset(m->totals + first_part * width, 0, (last_part - first_part) * width * sizeof(float));
    use_whole_tiles();
    round_factor(LEFT, 1, call->hidden, dim, n_rows, dim, thread, n_threads, m->hidden);
    round_factor(RIGHT, 1, call->weight, dim, n_words, dim, thread, n_threads, m->weight);
    round_factor(RIGHT, 0, call->weight, dim, dim, n_words, thread, n_threads, m->weight_by_dim);
    for (int64_t first = 0; first < blocks(n_rows); first += chunk) {
        const int64_t n = at_most(blocks(n_rows) - first, chunk), n_rows_here = at_most(n_rows - first * BLOCK, n * BLOCK);
        round_factor(LEFT, 0, call->hidden + first * BLOCK * dim, dim, dim, n_rows_here, thread, n_threads,
                     m->hidden_by_dim);
        meet(me);
        for (int64_t part = first_part; part < last_part; part++)
            for (int64_t block = first + n * part / n_parts; block < first + n * (part + 1) / n_parts; block++)
                softmax_rows(call, block, first, n, scores, of_rows, m->totals + part * width);
        meet(me);
        for (int64_t word = first_of(me, words); word < last_of(me, words); word++) {
            sum_in_chunks(m->hidden_by_dim, dims, m->probabilities + word * 2 * n * TILE_SIZE, 1, n, scores);
            for (int64_t part = 0; part < dims; part++)
                store_transposed(first > 0, scores + part * BLOCK * BLOCK,
                                 call->weight_gradient + word * BLOCK * dim + part * BLOCK, dim, n_words - word * BLOCK,
                                 dim - part * BLOCK);
        }
        meet(me);
    }
    for (int64_t word = first_of(me, n_words); word < last_of(me, n_words); word++) {
        float total = 0;
        for (int64_t part = 0; part < n_parts; part++) total += m->totals[part * width + word];
        call->offset_gradient[word] = total;
    }
    release_tiles();
}
#endif

int64_t elmokit_softmax_bytes(int64_t n_threads, int64_t n_rows, int64_t dim, int64_t n_words) {
#if HAS_BFLOAT16
    return softmax_parts(n_threads, n_rows, dim, n_words, NULL).end - (char *)NULL;
#else
    return (void)n_threads, (void)n_rows, (void)dim, (void)n_words, 0;
#endif
}

void elmokit_softmax_loss(int64_t n_threads, int64_t n_rows, int64_t dim, int64_t n_words, const float *hidden,
                          const float *weight, const float *offsets, const float *own_scores, const int64_t *skipped,
                          char *memory, float *losses, float *hidden_gradient, float *weight_gradient,
                          float *offset_gradient, float *own_gradient) {
#if HAS_BFLOAT16
    softmax call = {n_threads, n_rows, dim, n_words, hidden, weight, offsets, own_scores, skipped, losses,
                    hidden_gradient, weight_gradient, offset_gradient, own_gradient,
                    softmax_parts(n_threads, n_rows, dim, n_words, memory)};
    run_team(n_threads, compute_softmax, &call);
#else
    (void)n_threads, (void)n_rows, (void)dim, (void)n_words, (void)hidden, (void)weight, (void)offsets, (void)own_scores;
    (void)skipped, (void)memory, (void)losses, (void)hidden_gradient, (void)weight_gradient, (void)offset_gradient;
    (void)own_gradient;
#endif
}
