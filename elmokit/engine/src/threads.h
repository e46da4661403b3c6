/* A team of threads that computes one call together.

   Not OpenMP, for three reasons: macOS and Windows have no library for it that every program shares; its threads spin for
   milliseconds at every barrier, which makes a busy machine tens of times slower; and without it, a model opens on any
   system that has C.

   A call takes the threads that are idle and no more: two calls at the same time share the cores instead of fighting for
   them. How many threads compute never changes a bit of the result. */

#ifndef ELMOKIT_THREADS_H
#define ELMOKIT_THREADS_H

#include <stdint.h>

typedef struct team team;

/* A thread's place in its team. */
typedef struct {
    int64_t thread, n_threads; /* 0 is the thread that made the call */
    team *team;                /* NULL for a thread that works alone */
} member;

static const member ALONE = {0, 1, 0};

/* Multiplications below which a call is not shared: some 100 microseconds, about as long as waking a thread may take. The
   emulation, which only tests use, shares everything. */
#if defined(EMULATE)
enum { SMALL_WORK = 0 };
#else
enum { SMALL_WORK = 1 << 22 };
#endif

/* Run `work` in up to n_threads threads, and return when all of them have ended. Each computes its part, and they may meet. */
void run_team(int64_t n_threads, void (*work)(const member *me, void *context), void *context);

/* The same for a call of a few milliseconds at most: if another program takes a core of such a call, one thread computes each
   of the next ones. */
void run_short_team(int64_t n_threads, void (*work)(const member *me, void *context), void *context);

/* The same for work that any number of threads can do: each takes the next item until none is left. A thread that is not
   awake before the others have finished is not waited for. They may not meet. */
void share_work(int64_t n_threads, void (*work)(const member *me, void *context), void *context);

/* Wait until all members of the team are here. */
void meet(const member *me);

/* One thread at a time is between these two: for moments, such as taking memory that is kept for the next call. */
void enter(void);
void leave(void);

/* A thread's part of n items: from `first_of` to the next thread's `first_of`. */
static inline int64_t first_of(const member *me, int64_t n) { return n * me->thread / me->n_threads; }
static inline int64_t last_of(const member *me, int64_t n) { return n * (me->thread + 1) / me->n_threads; }

#endif
