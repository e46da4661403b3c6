/* The thread pool behind `run_team`, based on the system's threads.

   A waiting thread first spins, because most waits are shorter than falling asleep and waking up. Then it sleeps, so that a
   thread whose core is used by another program gets the core. */

#include "threads.h"

#if defined(__wasm__)
/* One thread: web pages have no others without special headers. */
void run_team(int64_t n_threads, void (*work)(const member *, void *), void *context) {
    (void)n_threads;
    work(&ALONE, context);
}
void run_short_team(int64_t n_threads, void (*work)(const member *, void *), void *context) {
    run_team(n_threads, work, context);
}
void share_work(int64_t n_threads, void (*work)(const member *, void *), void *context) {
    run_team(n_threads, work, context);
}
void meet(const member *me) { (void)me; }
void enter(void) {}
void leave(void) {}
#else

#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#if defined(_WIN32)
#include <windows.h>
typedef SRWLOCK lock;
typedef CONDITION_VARIABLE condition;
#define LOCK_INITIALIZER SRWLOCK_INIT
static void take(lock *it) { AcquireSRWLockExclusive(it); }
static void give(lock *it) { ReleaseSRWLockExclusive(it); }
static void prepare(lock *it, condition *changed) {
    InitializeSRWLock(it);
    InitializeConditionVariable(changed);
}
static void sleep_until(condition *changed, lock *it) { SleepConditionVariableSRW(changed, it, INFINITE, 0); }
static void wake_all(condition *changed) { WakeAllConditionVariable(changed); }
#else
#include <pthread.h>
#include <signal.h>
/* glibc 2.32 and 2.34 moved these functions to another library, under a new version. With the versions that they have always
   had, a library compiled with a new glibc also loads with an old one. Programs that contain glibc have no versions: this is
   only for shared libraries. */
#if !defined(__GLIBC__) || !defined(__PIC__) || defined(__PIE__)
#elif defined(__x86_64__)
__asm__(".symver pthread_create, pthread_create@GLIBC_2.2.5");
__asm__(".symver pthread_detach, pthread_detach@GLIBC_2.2.5");
__asm__(".symver pthread_sigmask, pthread_sigmask@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver pthread_create, pthread_create@GLIBC_2.17");
__asm__(".symver pthread_detach, pthread_detach@GLIBC_2.17");
__asm__(".symver pthread_sigmask, pthread_sigmask@GLIBC_2.17");
#endif
typedef pthread_mutex_t lock;
typedef pthread_cond_t condition;
#define LOCK_INITIALIZER PTHREAD_MUTEX_INITIALIZER
static void take(lock *it) { pthread_mutex_lock(it); }
static void give(lock *it) { pthread_mutex_unlock(it); }
static void prepare(lock *it, condition *changed) {
    pthread_mutex_init(it, NULL);
    pthread_cond_init(changed, NULL);
}
static void sleep_until(condition *changed, lock *it) { pthread_cond_wait(changed, it); }
static void wake_all(condition *changed) { pthread_cond_broadcast(changed); }
#endif

/* How often a thread checks before it sleeps: about 20 microseconds at a barrier, and about 1,000 between two calls, because
   a program often makes the next call immediately, and waking a thread takes longer than most calls. Longer waits at
   barriers would keep cores from other programs: with four busy programs per core, waits ten times as long made two threads
   slower than one, and gained nothing on an idle machine. */
enum { SPINS = 1500, SPINS_BETWEEN_CALLS = 60000, MAX_WORKERS = 1024 };

static void spin(void) {
#if defined(__x86_64__) || defined(_M_X64)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* A number that threads wait for. */
typedef struct {
    atomic_llong value;
    atomic_int n_sleeping;
    lock guard;
    condition changed;
} counter;

static void prepare_counter(counter *it) {
    atomic_init(&it->value, 0);
    atomic_init(&it->n_sleeping, 0);
    prepare(&it->guard, &it->changed);
}

static void advance(counter *it) {
    atomic_fetch_add(&it->value, 1);
    /* A thread that is about to sleep has either counted itself before this line, or sees the new value. */
    if (!atomic_load(&it->n_sleeping)) return;
    take(&it->guard);
    wake_all(&it->changed);
    give(&it->guard);
}

/* Wait until the number is at least `goal`. */
static void await(counter *it, long long goal, int n_spins) {
    for (int n = 0; n < n_spins; n++) {
        if (atomic_load_explicit(&it->value, memory_order_acquire) >= goal) return;
        spin();
    }
    take(&it->guard);
    atomic_fetch_add(&it->n_sleeping, 1);
    while (atomic_load(&it->value) < goal) sleep_until(&it->changed, &it->guard);
    atomic_fetch_sub(&it->n_sleeping, 1);
    give(&it->guard);
}

/* A thread whose core is taken by another program gets it back after some milliseconds, as long as several short calls take.
   After a call that waited this long, each of the next short calls is computed by one thread. */
enum { LATE_MICROSECONDS = 1000, CALLS_ALONE = 16 };
static atomic_int n_alone; /* how many of them are left */

static int64_t microseconds(void) {
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return now.tv_sec * 1000000LL + now.tv_nsec / 1000;
}

struct team {
    void (*work)(const member *, void *);
    void *context;
    int is_short;
    atomic_llong n_arrived; /* at barriers, since the team began */
    counter phase;          /* barriers that all members have passed */
};

/* Wait for a member of a team. */
static void await_member(const team *of, counter *it, long long goal) {
    const int64_t start = of->is_short ? microseconds() : 0;
    await(it, goal, SPINS);
    if (of->is_short && microseconds() - start > LATE_MICROSECONDS) atomic_store(&n_alone, CALLS_ALONE);
}

void meet(const member *me) {
    if (me->n_threads == 1) return;
    team *of = me->team;
    /* Each barrier needs one arrival of every member: the last arrival of a round ends the phase. */
    const long long arrival = atomic_fetch_add(&of->n_arrived, 1), round = arrival / me->n_threads;
    if (arrival % me->n_threads == me->n_threads - 1)
        advance(&of->phase);
    else
        await_member(of, &of->phase, round + 1);
}

/* Its counters are here instead of in the team, whose memory ends with the call: a worker may still read a counter after the
   waiting thread has seen the new value. */
typedef struct worker {
    member place;     /* in the last team that it was called to */
    atomic_int offer; /* whether it may still join that team */
    counter called;   /* the teams that it was called to */
    counter finished; /* the teams that it has worked for */
    long long n_joined; /* the same, as known to the threads that call it */
    struct worker *next;
} worker;

enum { OPEN, JOINED, WITHDRAWN };

static lock pool_guard = LOCK_INITIALIZER, kept_guard = LOCK_INITIALIZER;
static worker *idle; /* a stack: the thread that worked last is most likely to be spinning still */
static int n_workers;

void enter(void) { take(&kept_guard); }
void leave(void) { give(&kept_guard); }

static void serve(worker *self) {
    for (long long n_seen = 0;;) {
        await(&self->called, n_seen + 1, SPINS_BETWEEN_CALLS);
        n_seen = atomic_load(&self->called.value);
        int offer = OPEN;
        if (!atomic_compare_exchange_strong(&self->offer, &offer, JOINED)) continue; /* it came too late */
        self->place.team->work(&self->place, self->place.team->context);
        advance(&self->finished);
    }
}

#if defined(_WIN32)
static DWORD WINAPI start(void *self) {
    serve(self);
    return 0;
}
static int start_thread(worker *self) {
    const HANDLE thread = CreateThread(NULL, 0, start, self, 0, NULL);
    if (thread) CloseHandle(thread);
    return thread != NULL;
}
#else
static void *start(void *self) {
    serve(self);
    return NULL;
}
static int start_thread(worker *self) {
    /* Signals are for the program's threads, whose handlers may not run here. */
    sigset_t all_signals, before;
    sigfillset(&all_signals);
    pthread_sigmask(SIG_SETMASK, &all_signals, &before);
    pthread_t thread;
    const int failed = pthread_create(&thread, NULL, start, self);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed) pthread_detach(thread);
    return !failed;
}
/* A forked process has none of its parent's threads: start anew. */
static void forget_workers(void) {
    pool_guard = kept_guard = (lock)LOCK_INITIALIZER;
    idle = NULL, n_workers = 0;
}
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, forget_workers); }
#endif

/* Take up to n idle workers, starting new ones if necessary; fewer if the system does not allow more threads. */
static worker *take_workers(int64_t n, int64_t *n_taken) {
    worker *taken = NULL;
    *n_taken = 0;
    take(&pool_guard);
    while (*n_taken < n) {
        worker *one = idle;
        if (one)
            idle = one->next;
        else {
            if (n_workers == MAX_WORKERS || !(one = malloc(sizeof *one))) break;
            atomic_init(&one->offer, WITHDRAWN);
            prepare_counter(&one->called);
            prepare_counter(&one->finished);
            one->n_joined = 0;
            if (!start_thread(one)) {
                free(one);
                break;
            }
            n_workers++;
        }
        one->next = taken, taken = one, ++*n_taken;
    }
    give(&pool_guard);
    return taken;
}

static void return_workers(worker *taken) {
    take(&pool_guard);
    while (taken) {
        worker *next = taken->next;
        taken->next = idle, idle = taken, taken = next;
    }
    give(&pool_guard);
}

/* Run `work` in this thread and in idle workers; if `all_work`, wait until all of them have joined. */
static void run(int64_t n_threads, void (*work)(const member *, void *), void *context, int all_work, int is_short) {
    int64_t n_taken = 0, thread = 1;
    worker *workers = n_threads > 1 ? take_workers(n_threads - 1, &n_taken) : NULL;
    if (!n_taken) {
        work(&ALONE, context);
        return;
    }
    team own = {.work = work, .context = context, .is_short = is_short};
    prepare_counter(&own.phase);
    for (worker *each = workers; each; each = each->next) {
        each->place = (member){thread++, n_taken + 1, &own};
        atomic_store(&each->offer, OPEN);
        advance(&each->called);
    }
    work(&(member){0, n_taken + 1, &own}, context);
    for (worker *each = workers; each; each = each->next) {
        int offer = OPEN;
        /* Waking a thread can take longer than the whole call, especially on a virtual machine. */
        if (!all_work && atomic_compare_exchange_strong(&each->offer, &offer, WITHDRAWN)) continue;
        await_member(&own, &each->finished, each->n_joined + 1);
        each->n_joined++;
    }
    return_workers(workers);
}

void run_team(int64_t n_threads, void (*work)(const member *, void *), void *context) {
    run(n_threads, work, context, 1, 0);
}

void run_short_team(int64_t n_threads, void (*work)(const member *, void *), void *context) {
    const int is_alone = n_threads > 1 && atomic_load(&n_alone) > 0;
    if (is_alone) atomic_fetch_sub(&n_alone, 1);
    run(is_alone ? 1 : n_threads, work, context, 1, 1);
}

void share_work(int64_t n_threads, void (*work)(const member *, void *), void *context) {
    run(n_threads, work, context, 0, 0);
}
#endif
