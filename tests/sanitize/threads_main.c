/* Many threads use the pool of `threads.c` and one packed model at the same time: for ThreadSanitizer, for the leak check of
   AddressSanitizer, and for valgrind's detectors.

   main N: each thread makes N calls. Exit code 0 if all results are right. */

#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "threads.h"
#include "training.h"

enum { CALLERS = 4, DIM = 33, HIDDEN = 70, LAYERS = 2, DIRECTIONS = 2, ROWS = 5, LENGTH = 7, WORDS = 50, FILTERS = 40 };
enum { WIDTH = 3, COLUMNS = 8, CHARACTERS = 60, N_WEIGHTS = 8 * HIDDEN * DIM };

#define REQUIRE(holds)                                                                                               \
    if (!(holds)) fprintf(stderr, "line %d: not %s\n", __LINE__, #holds), exit(1)

static int n_calls;
static elmokit_lstm *lstm;
static elmokit_tokens *tokens;
static elmokit_matrix *matrix;
static float numbers[4 * N_WEIGHTS];
static float expected[LAYERS + 1][ROWS][LENGTH][DIRECTIONS * DIM], expected_vectors[WORDS][DIM], expected_outputs[ROWS][HIDDEN];
static double expected_sums[WORDS];
static int64_t words[ROWS][LENGTH], ids[WORDS][COLUMNS];

/* The pool itself: members of a team meet, and each sees what the others wrote before. */
typedef struct {
    int64_t written[64], n_threads;
    _Atomic int64_t next, n_taken;
} shared;

static void meet_often(const member *me, void *context) {
    shared *all = context;
    if (!me->thread) all->n_threads = me->n_threads;
    for (int64_t round = 1; round <= 5; round++) {
        all->written[me->thread] = round;
        meet(me);
        for (int64_t other = 0; other < me->n_threads; other++) REQUIRE(all->written[other] == round);
        meet(me);
    }
}

static void take_items(const member *me, void *context) {
    shared *all = context;
    (void)me;
    while (atomic_fetch_add(&all->next, 1) < 100) atomic_fetch_add(&all->n_taken, 1);
}

static int kept; /* guarded by enter and leave */

static void use_pool(int64_t n_threads) {
    shared team = {{0}, 0, 0, 0};
    run_team(n_threads, meet_often, &team);
    REQUIRE(team.n_threads >= 1 && team.n_threads <= (n_threads < 1 ? 1 : n_threads));
    share_work(n_threads, take_items, &team);
    REQUIRE(team.n_taken == 100);
    enter();
    kept++;
    leave();
}

static void compute_layers(int64_t n_threads, float *layers) {
    const int64_t slots[LAYERS + 1] = {0, 1, 2};
    elmokit_row rows[ROWS];
    for (int64_t row = 0; row < ROWS; row++)
        rows[row] = (elmokit_row){LENGTH, words[row], NULL, layers + row * LENGTH * DIRECTIONS * DIM,
                                  (int64_t)ROWS * LENGTH * DIRECTIONS * DIM};
    const elmokit_batch batch = {ROWS,       rows, numbers, slots, DIRECTIONS * DIM, 0, 0, DIRECTIONS, 1, numbers + 99,
                                 numbers + 7, NULL, NULL};
    REQUIRE(!elmokit_layers(lstm, n_threads, &batch));
}

static void compute_all(int64_t n_threads, float *layers, float *vectors, float *outputs, double *sums) {
    compute_layers(n_threads, layers);
    REQUIRE(!elmokit_token_vectors(tokens, n_threads, WORDS, COLUMNS, ids[0], vectors));
    REQUIRE(!elmokit_multiply(matrix, n_threads, ROWS, numbers, outputs));
    REQUIRE(!elmokit_log_sum_exp(n_threads, 0, WORDS, numbers, DIM, numbers + 11, numbers, WORDS, sums));
    REQUIRE(elmokit_lstm_bytes(lstm) > 0 && elmokit_tokens_bytes(tokens) > 0);
}

static void train(int64_t n_threads) {
    float *gates = malloc(4 * ROWS * HIDDEN * 4), *buffers = malloc(7 * ROWS * HIDDEN * 4), *of[7];
    REQUIRE(gates && buffers);
    memcpy(gates, numbers, 4 * ROWS * HIDDEN * 4);
    memcpy(buffers, numbers, 7 * ROWS * HIDDEN * 4);
    for (int k = 0; k < 7; k++) of[k] = buffers + k * ROWS * HIDDEN;
    elmokit_training_step(n_threads, ROWS, HIDDEN, gates, of[0], of[1], of[2], of[3], 3.0f);
    elmokit_dropout(n_threads, ROWS * HIDDEN, 3, 0.5f, of[3], of[4]);
    if (elmokit_has_bfloat16()) {
        void *memory = aligned_alloc(64, (size_t)((elmokit_linear_bytes(ROWS, DIM, HIDDEN) + 63) / 64 * 64));
        REQUIRE(memory);
        elmokit_linear_forward(n_threads, ROWS, DIM, HIDDEN, numbers, numbers, numbers, memory, of[5]);
        elmokit_highway_forward(n_threads, ROWS * HIDDEN, of[3], of[4], of[5], of[6]);
        free(memory);
    }
    free(gates);
    free(buffers);
}

static void *call(void *argument) {
    const int64_t caller = *(int64_t *)argument;
    float *layers = malloc(sizeof expected), *vectors = malloc(sizeof expected_vectors);
    float *outputs = malloc(sizeof expected_outputs);
    double *sums = malloc(sizeof expected_sums);
    REQUIRE(layers && vectors && outputs && sums);
    for (int64_t k = 0; k < n_calls; k++) {
        const int64_t n_threads = (caller + k) % 4;
        use_pool(n_threads);
        compute_all(n_threads, layers, vectors, outputs, sums);
        REQUIRE(!memcmp(layers, expected, sizeof expected));
        REQUIRE(!memcmp(vectors, expected_vectors, sizeof expected_vectors));
        REQUIRE(!memcmp(outputs, expected_outputs, sizeof expected_outputs));
        REQUIRE(!memcmp(sums, expected_sums, sizeof expected_sums));
        train(n_threads);
    }
    free(layers);
    free(vectors);
    free(outputs);
    free(sums);
    return NULL;
}

static void open_all(int64_t precision) {
    const int64_t backward[DIRECTIONS] = {0, 1}, width = WIDTH, n_filters = FILTERS;
    const float *filters = numbers, *biases = numbers + 5;
    const elmokit_lstm_sizes sizes = {DIRECTIONS, backward, LAYERS, DIM, HIDDEN, 3.0f, 3.0f, 1};
    REQUIRE(!elmokit_open_lstm(&sizes, precision, &lstm));
    for (int64_t k = 0; k < DIRECTIONS * LAYERS; k++)
        REQUIRE(!elmokit_pack_layer(lstm, k / LAYERS, k % LAYERS, numbers + k, numbers + 2 * k, numbers + 3 * k));
    const elmokit_token_weights weights = {
        .n_characters = CHARACTERS, .character_dim = 4, .characters = numbers, .n_convolutions = 1, .widths = &width,
        .n_filters = &n_filters, .filters = &filters, .filter_biases = &biases, .n_highways = 1, .projection = numbers,
        .projection_bias = numbers, .output_dim = DIM};
    REQUIRE(!elmokit_open_tokens(&weights, precision, &tokens));
    REQUIRE(!elmokit_pack_highway(tokens, 0, numbers, numbers, numbers + 9, numbers));
    REQUIRE(!elmokit_open_matrix(precision, HIDDEN, DIM, numbers, numbers, &matrix));
}

static void close_all(void) {
    elmokit_close_lstm(lstm);
    elmokit_close_tokens(tokens);
    elmokit_close_matrix(matrix);
}

int main(int n_arguments, char **arguments) {
    n_calls = n_arguments > 1 ? atoi(arguments[1]) : 10;
    for (int64_t k = 0; k < (int64_t)(sizeof numbers / sizeof *numbers); k++)
        numbers[k] = 0.05f * (float)((k * 7919) % 41 - 20);
    for (int64_t k = 0; k < ROWS * LENGTH; k++) words[k / LENGTH][k % LENGTH] = k * 3 % 40;
    for (int64_t k = 0; k < WORDS * COLUMNS; k++) ids[k / COLUMNS][k % COLUMNS] = k * 11 % CHARACTERS;
    const char *names[] = {"float32", "bfloat16", "int8", "int7"};
    for (int p = 0; p < 4; p++) {
        open_all(elmokit_precision(names[p]));
        compute_all(1, expected[0][0][0], expected_vectors[0], expected_outputs[0], expected_sums);
        pthread_t threads[CALLERS];
        int64_t numbers_of[CALLERS];
        for (int64_t k = 0; k < CALLERS; k++) {
            numbers_of[k] = k;
            REQUIRE(!pthread_create(threads + k, NULL, call, numbers_of + k));
        }
        for (int64_t k = 0; k < CALLERS; k++) pthread_join(threads[k], NULL);
        close_all();
    }
    REQUIRE(kept == 4 * CALLERS * n_calls);
#if !defined(NO_FORK)
    /* A process that forks has no workers; the child starts its own. */
    const pid_t child = fork();
    if (!child) {
        use_pool(3);
        _exit(0);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
#endif
    use_pool(3);
    return 0;
}
