/* A `malloc` that puts each block of GUARDED_FROM bytes or more before a page that nobody may touch, for LD_PRELOAD.

   Under it, a program that reads or writes past the end of an array, or an array that was freed, is killed. Addresses are
   never used twice. Between the end of a block and the page may be up to 15 bytes, because a block begins at a multiple of
   16 at least: a write there is found when the block is freed.

   It is for NumPy's and PyTorch's arrays and for the memory that the library itself takes. Smaller blocks are Python's own
   objects, which come from the C library as always, and so do blocks beyond MAX_GUARDED at the same time: the system limits
   the number of a process's maps. */

#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { GUARDED_FROM = 600, MAX_GUARDED = 12000, PAGE = 4096, GAP = 0xa5 };
static const size_t SPACE = (size_t)1 << 45;

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static _Atomic uintptr_t next; /* 0 before the first block */
static uintptr_t first;
static atomic_int n_guarded, is_starting;

/* The page before a block. */
typedef struct {
    size_t n_bytes, n_mapped;
} header;

static int is_ours(const void *block) { return first && (uintptr_t)block >= first && (uintptr_t)block < first + SPACE; }
static header *header_of(const void *block) { return (header *)((uintptr_t)block / PAGE * PAGE - PAGE); }

static int reserve(void) {
    if (next) return 1;
    if (atomic_exchange(&is_starting, 1)) return 0; /* another thread is at it; this block is not guarded */
    void *space = mmap(NULL, SPACE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) return 0;
    first = (uintptr_t)space;
    next = first;
    return 1;
}

static void *take(size_t alignment, size_t n_bytes) {
    if (n_bytes < GUARDED_FROM || n_bytes > SPACE / 1024 || alignment > PAGE) return NULL;
    if (atomic_load(&n_guarded) >= MAX_GUARDED || !reserve()) return NULL;
    alignment = alignment < 16 ? 16 : alignment;
    const size_t room = (n_bytes + alignment - 1) / alignment * alignment, pages = (room + PAGE - 1) / PAGE * PAGE;
    const size_t n_mapped = pages + 2 * PAGE; /* the header and the guard */
    const uintptr_t at = atomic_fetch_add(&next, n_mapped);
    if (at + n_mapped > first + SPACE) return NULL;
    if (mprotect((void *)at, pages + PAGE, PROT_READ | PROT_WRITE)) return NULL;
    char *block = (char *)(at + PAGE + pages - room);
    *(header *)at = (header){n_bytes, n_mapped};
    /* A block may begin in the middle of its first page; the header is found from there all the same. */
    if (header_of(block) != (header *)at) abort();
    memset(block + n_bytes, GAP, room - n_bytes);
    atomic_fetch_add(&n_guarded, 1);
    return block;
}

static void give(void *block) {
    header *of = header_of(block);
    for (char *end = (char *)block + of->n_bytes; (uintptr_t)end % PAGE; end++)
        if (*end != (char)GAP) {
            const char message[] = "guard_malloc: something was written behind a block\n";
            (void)!write(2, message, sizeof message - 1);
            abort();
        }
    atomic_fetch_sub(&n_guarded, 1);
    /* New pages without rights in place of the old ones: they take no memory, and whoever touches them is killed. */
    mmap(of, of->n_mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

void *malloc(size_t n_bytes) {
    void *block = take(16, n_bytes);
    return block ? block : __libc_malloc(n_bytes);
}

void *calloc(size_t n, size_t size) {
    size_t n_bytes;
    void *block = __builtin_mul_overflow(n, size, &n_bytes) ? NULL : take(16, n_bytes); /* new pages are zeros */
    return block ? block : __libc_calloc(n, size);
}

void free(void *block) {
    const int before = errno;
    if (is_ours(block))
        give(block);
    else
        __libc_free(block);
    errno = before;
}

void *realloc(void *block, size_t n_bytes) {
    if (!is_ours(block) && n_bytes < GUARDED_FROM) return __libc_realloc(block, n_bytes);
    if (!block) return malloc(n_bytes);
    if (!is_ours(block)) return __libc_realloc(block, n_bytes);
    void *moved = malloc(n_bytes);
    if (!moved) return NULL;
    const size_t n_before = header_of(block)->n_bytes;
    memcpy(moved, block, n_before < n_bytes ? n_before : n_bytes);
    give(block);
    return moved;
}

void *memalign(size_t alignment, size_t n_bytes) {
    void *block = take(alignment, n_bytes);
    return block ? block : __libc_memalign(alignment, n_bytes);
}
void *aligned_alloc(size_t alignment, size_t n_bytes) { return memalign(alignment, n_bytes); }
int posix_memalign(void **block, size_t alignment, size_t n_bytes) {
    void *made = memalign(alignment, n_bytes);
    if (!made) return ENOMEM;
    *block = made;
    return 0;
}
size_t malloc_usable_size(void *block) {
    static size_t (*usual)(void *);
    if (is_ours(block)) return header_of(block)->n_bytes;
    extern void *dlsym(void *, const char *);
    if (!usual) usual = (size_t(*)(void *))dlsym((void *)-1L /* RTLD_NEXT */, "malloc_usable_size");
    return usual(block);
}
