/* The runtime behind the compiler's thread instrumentation: it records instead of judging.
 *
 * `cargo xtask conflicts` compiles the library with -Zsanitizer=thread and links this file in place of the sanitizer's own
 * runtime. It is C, compiled apart, because a runtime written in Rust would itself be instrumented by the flag that
 * instruments the library.
 *
 * Every plain access, atomic and copy of instrumented code calls one of the functions below. While its thread's
 * `on` is set, each leaves one record in a buffer of that thread; nothing is shared between threads. The thread's stack, which in
 * glibc holds its thread-locals too, is left out. Calls and returns are followed in a shadow stack, so that a record can name
 * its callers without unwinding.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { WRITE = 1, ATOMIC = 2 };
enum { DEPTH = 256, KEPT = 32 };

/* The same layout as `Access` in src/conflicts/trace.rs. */
struct access {
    uintptr_t addr;
    uintptr_t pc;
    uintptr_t caller;
    uint32_t size;
    uint16_t kind;
    uint16_t unused;
    /* Where in `stacks` its callers start, in units of KEPT; 0 without stacks. */
    uint64_t stack;
};

struct tracer {
    int on;
    int with_stacks;
    uintptr_t low, high;
    struct access *buffer;
    size_t count, capacity;
    uintptr_t *stacks;
    size_t stack_count, stack_capacity;
    uint64_t lost;
};

static __thread struct tracer t __attribute__((tls_model("initial-exec")));
static __thread uintptr_t shadow[DEPTH] __attribute__((tls_model("initial-exec")));
static __thread int depth __attribute__((tls_model("initial-exec")));

/* What the coarse clock answers while it stands still; 0: it runs. */
static volatile int64_t stopped_ns;

/* Stops the coarse clock where it is, or lets it run: where threads take turns, an operation takes so much longer than by itself that many
 * more ticks would fall between two of them. */
void lanefs_trace_stop_clock(int stop) {
    struct timespec now;
    stopped_ns = 0;
    if (stop && syscall(SYS_clock_gettime, CLOCK_REALTIME_COARSE, &now) == 0)
        stopped_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* In place of the C library's, whose other users are not on any path that is measured here. */
int clock_gettime(clockid_t id, struct timespec *out) {
    if (stopped_ns && id == CLOCK_REALTIME_COARSE) {
        out->tv_sec = stopped_ns / 1000000000;
        out->tv_nsec = stopped_ns % 1000000000;
        return 0;
    }
    return (int)syscall(SYS_clock_gettime, id, out);
}

/* Gives the calling thread a buffer. Returns 0, or -1 without memory. */
int lanefs_trace_setup(size_t capacity, size_t stack_capacity) {
    pthread_attr_t attr;
    void *low;
    size_t size;
    if (t.buffer)
        return 0;
    if (pthread_getattr_np(pthread_self(), &attr))
        return -1;
    pthread_attr_getstack(&attr, &low, &size);
    pthread_attr_destroy(&attr);
    t.low = (uintptr_t)low;
    t.high = t.low + size;
    t.buffer = malloc(capacity * sizeof *t.buffer);
    t.capacity = capacity;
    t.stacks = malloc(stack_capacity * KEPT * sizeof *t.stacks);
    t.stack_capacity = stack_capacity;
    /* Thread-locals are left out only if they lie in the thread's stack, as they do for all threads but the first. */
    if ((uintptr_t)&t < t.low || (uintptr_t)&t >= t.high)
        return -1;
    return t.buffer && t.stacks ? 0 : -1;
}

void lanefs_trace_start(int with_stacks) {
    t.count = 0;
    t.stack_count = 0;
    t.lost = 0;
    t.with_stacks = with_stacks;
    t.on = 1;
}

/* Forgets what was recorded; stacks are kept as before. */
void lanefs_trace_forget(void) {
    lanefs_trace_start(t.with_stacks);
}

/* Two patterns of one-byte stores, by which a trace made by somebody else (valgrind's lackey) shows where a recording begins and ends:
 * the distances in src/conflicts/lackey.rs. On a line of its own. */
static volatile unsigned char marks[64] __attribute__((aligned(64)));
#define MARK(a, b, c, d, e, f, g)                                                                                      \
    do {                                                                                                               \
        marks[0] = 1, marks[a] = 1, marks[b] = 1, marks[c] = 1;                                                        \
        marks[d] = 1, marks[e] = 1, marks[f] = 1, marks[g] = 1;                                                        \
    } while (0)

void lanefs_trace_resume(void) {
    MARK(3, 4, 8, 9, 14, 23, 25);
    t.on = 1;
}

void lanefs_trace_pause(void) {
    t.on = 0;
    MARK(31, 4, 15, 9, 26, 53, 58);
}

const struct access *lanefs_trace_stop(size_t *count, const uintptr_t **stacks, uint64_t *lost) {
    t.on = 0;
    *count = t.count;
    *stacks = t.stacks;
    *lost = t.lost;
    return t.buffer;
}

/* Copies the callers of the running function, innermost first; returns how many. For the allocator. */
size_t lanefs_trace_callers(uintptr_t *out, size_t max) {
    size_t n = 0;
    for (int i = depth < DEPTH ? depth : DEPTH; i > 0 && n < max; i--)
        out[n++] = shadow[i - 1];
    return n;
}

static void record(uintptr_t addr, size_t size, uint32_t kind, void *pc) {
    struct access *a;
    if (addr >= t.low && addr < t.high)
        return;
    if (t.count == t.capacity) {
        t.lost++;
        return;
    }
    a = &t.buffer[t.count++];
    a->addr = addr;
    a->pc = (uintptr_t)pc;
    a->caller = depth > 0 && depth <= DEPTH ? shadow[depth - 1] : 0;
    a->size = (uint32_t)size;
    a->kind = (uint16_t)kind;
    a->unused = 0;
    a->stack = 0;
    if (t.with_stacks && t.stack_count + 1 < t.stack_capacity) {
        uintptr_t *s = t.stacks + ++t.stack_count * KEPT;
        memset(s, 0, KEPT * sizeof *s);
        s[0] = (uintptr_t)pc;
        lanefs_trace_callers(s + 1, KEPT - 1);
        a->stack = t.stack_count;
    }
}

#define SEEN(addr, size, kind)                                                                                         \
    do {                                                                                                               \
        if (__builtin_expect(t.on, 0))                                                                                 \
            record((uintptr_t)(addr), (size), (kind), __builtin_return_address(0));                                     \
    } while (0)

void __tsan_init(void) {}
void __tsan_func_entry(void *caller) {
    if (depth < DEPTH)
        shadow[depth] = (uintptr_t)caller;
    depth++;
}
void __tsan_func_exit(void) {
    if (depth > 0)
        depth--;
}

#define PLAIN(n)                                                                                                       \
    void __tsan_read##n(void *p) { SEEN(p, n, 0); }                                                                    \
    void __tsan_write##n(void *p) { SEEN(p, n, WRITE); }                                                               \
    void __tsan_unaligned_read##n(void *p) { SEEN(p, n, 0); }                                                          \
    void __tsan_unaligned_write##n(void *p) { SEEN(p, n, WRITE); }                                                     \
    void __tsan_volatile_read##n(void *p) { SEEN(p, n, 0); }                                                           \
    void __tsan_volatile_write##n(void *p) { SEEN(p, n, WRITE); }                                                      \
    void __tsan_unaligned_volatile_read##n(void *p) { SEEN(p, n, 0); }                                                 \
    void __tsan_unaligned_volatile_write##n(void *p) { SEEN(p, n, WRITE); }                                            \
    void __tsan_read_write##n(void *p) { SEEN(p, n, WRITE); }                                                          \
    void __tsan_unaligned_read_write##n(void *p) { SEEN(p, n, WRITE); }
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)

void __tsan_read_range(void *p, size_t n) { SEEN(p, n, 0); }
void __tsan_write_range(void *p, size_t n) { SEEN(p, n, WRITE); }
void __tsan_vptr_update(void **p, void *v) { (void)v; SEEN(p, 8, WRITE); }
void __tsan_vptr_read(void **p) { SEEN(p, 8, 0); }

void *__tsan_memcpy(void *to, const void *from, size_t n) {
    SEEN(from, n, 0);
    SEEN(to, n, WRITE);
    return memcpy(to, from, n);
}
void *__tsan_memmove(void *to, const void *from, size_t n) {
    SEEN(from, n, 0);
    SEEN(to, n, WRITE);
    return memmove(to, from, n);
}
void *__tsan_memset(void *to, int c, size_t n) {
    SEEN(to, n, WRITE);
    return memset(to, c, n);
}

/* Atomics are done here, in an order at least as strong as asked for: what is recorded is where, not how. A compare-exchange that fails takes the
 * line as one that succeeds does, and counts as a write. */
#define ATOMICS(bits, type)                                                                                            \
    type __tsan_atomic##bits##_load(const volatile type *p, int o) {                                                   \
        (void)o;                                                                                                       \
        SEEN(p, sizeof(type), ATOMIC);                                                                                 \
        return __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                                   \
    }                                                                                                                  \
    void __tsan_atomic##bits##_store(volatile type *p, type v, int o) {                                                \
        SEEN(p, sizeof(type), ATOMIC | WRITE);                                                                         \
        if (o == __ATOMIC_SEQ_CST)                                                                                     \
            __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                                                  \
        else                                                                                                           \
            __atomic_store_n(p, v, __ATOMIC_RELEASE);                                                                  \
    }                                                                                                                  \
    type __tsan_atomic##bits##_exchange(volatile type *p, type v, int o) {                                             \
        (void)o;                                                                                                       \
        SEEN(p, sizeof(type), ATOMIC | WRITE);                                                                         \
        return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);                                                            \
    }                                                                                                                  \
    RMW(bits, type, add)                                                                                               \
    RMW(bits, type, sub)                                                                                               \
    RMW(bits, type, and)                                                                                               \
    RMW(bits, type, or)                                                                                                \
    RMW(bits, type, xor)                                                                                               \
    RMW(bits, type, nand)                                                                                              \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile type *p, type *c, type v, int o, int f) {               \
        (void)o, (void)f;                                                                                              \
        SEEN(p, sizeof(type), ATOMIC | WRITE);                                                                         \
        return __atomic_compare_exchange_n(p, c, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                            \
    }                                                                                                                  \
    int __tsan_atomic##bits##_compare_exchange_weak(volatile type *p, type *c, type v, int o, int f) {                 \
        (void)o, (void)f;                                                                                              \
        SEEN(p, sizeof(type), ATOMIC | WRITE);                                                                         \
        return __atomic_compare_exchange_n(p, c, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                            \
    }                                                                                                                  \
    type __tsan_atomic##bits##_compare_exchange_val(volatile type *p, type c, type v, int o, int f) {                  \
        (void)o, (void)f;                                                                                              \
        SEEN(p, sizeof(type), ATOMIC | WRITE);                                                                         \
        __atomic_compare_exchange_n(p, &c, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                                  \
        return c;                                                                                                      \
    }
#define RMW(bits, type, op)                                                                                            \
    type __tsan_atomic##bits##_fetch_##op(volatile type *p, type v, int o) {                                           \
        (void)o;                                                                                                       \
        SEEN(p, sizeof(type), ATOMIC | WRITE);                                                                         \
        return __atomic_fetch_##op(p, v, __ATOMIC_SEQ_CST);                                                            \
    }
ATOMICS(8, uint8_t)
ATOMICS(16, uint16_t)
ATOMICS(32, uint32_t)
ATOMICS(64, uint64_t)

void __tsan_atomic_thread_fence(int o) {
    (void)o;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
void __tsan_atomic_signal_fence(int o) {
    (void)o;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}
