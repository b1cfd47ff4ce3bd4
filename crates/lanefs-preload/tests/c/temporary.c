#include "common.h"

int main(int argc, char **argv) {
    begin(argc, argv);
    char *t = strdup(in("f-XXXXXX"));
    int fd = mkstemp(t);
    OK(fd);
    printf("%d\n", strcmp(t + strlen(t) - 6, "XXXXXX") != 0);
    SAY(write(fd, "x", 1));
    struct stat s;
    SAY(stat(t, &s));
    printf("%o\n", s.st_mode);
    SAY(mkstemp(strdup(in("f-XXX"))));
    t = strdup(in("XXXXXX.c"));
    OK(mkostemps(t, 2, O_APPEND | O_CLOEXEC));
    printf("%s\n", t + strlen(t) - 2);
    t = strdup(in("d-XXXXXX"));
    printf("%d\n", mkdtemp(t) == t);
    SAY(stat(t, &s));
    printf("%o\n", s.st_mode);
    t = strdup(in("none/d-XXXXXX"));
    printf("%d %s\n", mkdtemp(t) == NULL, strerrorname_np(errno));
    SAY(mkstemp(t));
    return 0;
}
