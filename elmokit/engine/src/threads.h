/* A team of threads that computes one call together.

   OpenMP is not used, for three reasons: macOS and Windows have no OpenMP library that every program shares; its threads
   spin for milliseconds at every barrier, which makes a busy machine tens of times slower; and without it, a model opens on
   any system that has C.

   A call only uses threads that are idle: two simultaneous calls share the cores instead of competing for them. The number
   of threads never changes any bit of the result. */

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

/* The number of multiplications below which a call is not shared: about 100 microseconds, as long as waking a thread may
   take. The emulation, which only tests use, shares everything. */
#if defined(EMULATE)
enum { SMALL_WORK = 0 };
#else
enum { SMALL_WORK = 1 << 22 };
#endif

/* Run `work` in up to n_threads threads, and return when all of them have ended. Each computes its part, and they may use
   barriers. */
void run_team(int64_t n_threads, void (*work)(const member *me, void *context), void *context);

/* The same for a call of at most a few milliseconds: if another program takes a core from such a call, the next calls are
   computed by one thread each. */
void run_short_team(int64_t n_threads, void (*work)(const member *me, void *context), void *context);

/* The same for work that any number of threads can do: each takes the next item until none is left. A thread that is not
   awake before the others have finished is not waited for. Barriers are not allowed. */
void share_work(int64_t n_threads, void (*work)(const member *me, void *context), void *context);

/* A barrier: wait for all members of the team. */
void meet(const member *me);

/* Only one thread at a time is between these two calls, for short operations such as taking memory that is kept for the next
   call. */
void enter(void);
void leave(void);

/* A thread's part of n items: from `first_of` to the next thread's `first_of`. */
static inline int64_t first_of(const member *me, int64_t n) { return n * me->thread / me->n_threads; }
static inline int64_t last_of(const member *me, int64_t n) { return n * (me->thread + 1) / me->n_threads; }

#endif
