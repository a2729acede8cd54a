/* A heap whose addresses depend on nothing but what is allocated, for the process that compiles an RTX engine.
 *
 * The compiler orders and hashes things by their addresses, so an engine's bytes follow from where its objects lie. Two
 * of its threads hand work to each other, and the scheduler decides which of them frees a block; the C library gives
 * such blocks out again, in another order in every process. Here an address is never given out twice: each thread takes
 * the next one of its own, so that addresses rise in the order of a thread's allocations, whatever the other threads
 * do. And trtforge_heap_mark() puts what the calling thread allocates next at an address that does not depend on what
 * was allocated before: the interpreter's start, with its paths and its environment, leaves no trace.
 *
 * Addresses come from regions far from where Linux puts anything on x86-64. A region is divided into chunks; a chunk
 * counts the blocks in it that are not freed, and gives its memory back to the system with the last one. So the
 * process holds what is in use and what shares a chunk with it; only addresses are spent (of 64 TiB).
 *
 * Loaded by LD_PRELOAD.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define EXPORTED __attribute__((visibility("default")))

static const uintptr_t FIRST = (uintptr_t)1 << 44; /* programs load above 85 TiB, libraries and stacks near 128 TiB */
static const uintptr_t END = (uintptr_t)80 << 40;
static const size_t REGION = (size_t)1 << 30; /* what a thread takes at a time */
static const size_t MAPPED = (size_t)1 << 25; /* what is asked of the system at a time */
#define CHUNK ((size_t)1 << 16)               /* a power of two: a block finds its chunk by its address */
static const size_t SMALL = (size_t)1 << 14;  /* longer blocks have chunks of their own */
static const size_t UNMAPPED = (size_t)1 << 20; /* chunks from here on are unmapped, shorter ones emptied */
static const size_t UNIT = 16;
static const size_t WIDE = 64;          /* unit of longer blocks: a message with a time in it takes the same */
static const uintptr_t MARKED = 4096;   /* regions between two marks */

typedef struct {
    atomic_size_t live; /* blocks not freed, and one while a thread allocates from it */
    size_t bytes;
    char unused[48];
} chunk_t;

typedef struct {
    size_t bytes; /* of the block that follows */
    size_t unused;
} header_t;

typedef struct {
    uintptr_t next, mapped, end; /* of the thread's region */
    chunk_t *chunk;              /* where small blocks are taken from */
    uintptr_t free;              /* its first free address */
} thread_t;

static atomic_uintptr_t regions = 0; /* handed out so far */
static __thread thread_t mine;

static uintptr_t round_up(uintptr_t value, size_t unit) { return (value + unit - 1) & ~(unit - 1); }

/* The next regions of the process for this thread, enough for `bytes`; 0 when addresses are spent. */
static int new_region(size_t bytes) {
    const uintptr_t count = round_up(bytes, REGION) / REGION;
    const uintptr_t first = atomic_fetch_add(&regions, count);
    if (first + count > (END - FIRST) / REGION) return 0;
    mine.next = mine.mapped = FIRST + first * REGION;
    mine.end = mine.next + count * REGION;
    return 1;
}

/* A new chunk, all zeros but its header; NULL without memory. `bytes` is a multiple of CHUNK. */
static chunk_t *new_chunk(size_t bytes) {
    if (bytes > mine.end - mine.next && !new_region(bytes)) return NULL;
    if (mine.next + bytes > mine.mapped) {
        const size_t more = round_up(mine.next + bytes - mine.mapped, MAPPED);
        void *wanted = (void *)mine.mapped;
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
        if (mmap(wanted, more, PROT_READ | PROT_WRITE, flags, -1, 0) != wanted) return NULL;
        mine.mapped += more;
    }
    chunk_t *chunk = (chunk_t *)mine.next;
    mine.next += bytes;
    atomic_init(&chunk->live, 1);
    chunk->bytes = bytes;
    return chunk;
}

static void release(chunk_t *chunk) {
    if (atomic_fetch_sub(&chunk->live, 1) != 1) return;
    const size_t bytes = chunk->bytes;
    if (bytes >= UNMAPPED)
        munmap(chunk, bytes);
    else
        madvise(chunk, bytes, MADV_DONTNEED);
}

static void leave_chunk(void) {
    if (mine.chunk != NULL) release(mine.chunk);
    mine.chunk = NULL;
}

static int is_ours(const void *block) { return (uintptr_t)block >= FIRST && (uintptr_t)block < END; }

static header_t *header_of(void *block) { return (header_t *)block - 1; }

/* A block of zeros: memory is never given out twice. */
static void *allocate(size_t bytes, size_t alignment) {
    if (alignment < UNIT) alignment = UNIT;
    if (bytes > END - FIRST || alignment > CHUNK / 2) goto refused;
    bytes = round_up(bytes ? bytes : 1, bytes > WIDE ? WIDE : UNIT);
    if (bytes + alignment > SMALL) {
        chunk_t *chunk = new_chunk(round_up(sizeof(chunk_t) + sizeof(header_t) + alignment + bytes, CHUNK));
        if (chunk == NULL) goto refused;
        leave_chunk(); /* what is small comes after this block too: addresses rise */
        void *block = (void *)round_up((uintptr_t)(chunk + 1) + sizeof(header_t), alignment);
        header_of(block)->bytes = bytes;
        return block;
    }
    uintptr_t address = round_up(mine.free + sizeof(header_t), alignment);
    if (mine.chunk == NULL || address + bytes > (uintptr_t)mine.chunk + CHUNK) {
        leave_chunk();
        mine.chunk = new_chunk(CHUNK);
        if (mine.chunk == NULL) goto refused;
        address = round_up((uintptr_t)(mine.chunk + 1) + sizeof(header_t), alignment);
    }
    atomic_fetch_add(&mine.chunk->live, 1);
    mine.free = address + bytes;
    header_of((void *)address)->bytes = bytes;
    return (void *)address;
refused:
    errno = ENOMEM;
    return NULL;
}

/* The calling thread allocates from region `number` x MARKED on, and threads that begin later follow. */
EXPORTED void trtforge_heap_mark(unsigned number) {
    leave_chunk();
    atomic_store(&regions, number * MARKED);
    new_region(REGION);
}

EXPORTED void *malloc(size_t bytes) { return allocate(bytes, UNIT); }

EXPORTED void free(void *block) {
    if (!is_ours(block)) return; /* NULL, and what the loader took before this library was there */
    const int error = errno;
    release((chunk_t *)((uintptr_t)block & ~(CHUNK - 1)));
    errno = error;
}

EXPORTED void *calloc(size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    return allocate(bytes, UNIT);
}

EXPORTED void *realloc(void *block, size_t bytes) {
    if (block == NULL) return allocate(bytes, UNIT);
    if (bytes == 0) {
        free(block);
        return NULL;
    }
    const size_t held = header_of(block)->bytes;
    if (bytes <= held) return block;
    void *longer = allocate(bytes, UNIT);
    if (longer != NULL) {
        memcpy(longer, block, held);
        free(block);
    }
    return longer;
}

EXPORTED void *memalign(size_t alignment, size_t bytes) { return allocate(bytes, alignment); }

EXPORTED void *aligned_alloc(size_t alignment, size_t bytes) { return allocate(bytes, alignment); }

EXPORTED int posix_memalign(void **block, size_t alignment, size_t bytes) {
    const int error = errno;
    void *found = allocate(bytes, alignment);
    errno = error;
    if (found == NULL) return ENOMEM;
    *block = found;
    return 0;
}

EXPORTED void *valloc(size_t bytes) { return allocate(bytes, 4096); }

EXPORTED void *pvalloc(size_t bytes) { return allocate(round_up(bytes, 4096), 4096); }

EXPORTED size_t malloc_usable_size(void *block) { return is_ours(block) ? header_of(block)->bytes : 0; }
