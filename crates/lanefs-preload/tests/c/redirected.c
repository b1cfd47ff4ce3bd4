/* The standard streams on files, by dup2 and by the lowest number. */
#include "common.h"

int main(int argc, char **argv) {
    begin(argc, argv);
    char text[100] = {0};
    int number = 0, out = dup(1);
    int fd = open(in("out"), O_RDWR | O_CREAT, 0600);
    printf("not flushed yet, ");
    SAY(dup2(fd, 1));
    printf("into the file\n");
    puts("by puts");
    fflush(stdout);
    SAY(dup2(out, 1));
    printf("back again\n");
    fflush(stdout);
    show("out");
    SAY(dup2(fd, 2));
    fprintf(stderr, "an error %d\n", 1);
    perror("why");
    show("out");
    fd = open(in("in"), O_RDWR | O_CREAT, 0600);
    SAY(write(fd, "17 words\nline\n", 14));
    close(fd);
    close(0);
    SAY(open(in("in"), O_RDONLY));
    printf("%d %d\n", scanf("%d %s", &number, text), number);
    printf("%s %d\n", text, getchar());
    printf("%s", fgets(text, sizeof text, stdin));
    printf("%d\n", getchar());
    return 0;
}
