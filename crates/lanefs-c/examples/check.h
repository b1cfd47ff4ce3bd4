/* What the examples have in common: a call that does not answer as it is written ends the program,
   with the line, the answer and the last message. */
#include <lanefs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline void check_failed(int line, const char *what, long long got)
{
    fprintf(stderr, "line %d: %s: %lld (%s)\n", line, what, got, lanefs_last_error());
    exit(1);
}

/* The call answers what is expected. */
#define IS(call, expected)                     \
    do {                                       \
        long long got_ = (call);               \
        if (got_ != (long long)(expected))     \
            check_failed(__LINE__, #call, got_); \
    } while (0)

/* The call succeeds, with nothing to count. */
#define OK(call) IS(call, 0)

/* The last message has a word. */
#define TELLS(word) IS(strstr(lanefs_last_error(), word) != NULL, 1)
