#include "common.h"

/* ACLs as libacl hands them to the kernel, beside modes. */

#define ACCESS "system.posix_acl_access"
#define DEFAULT "system.posix_acl_default"

struct acl {
    uint32_t version;
    struct {
        uint16_t tag, perm;
        uint32_t id;
    } entries[5];
};

enum { USER_OBJ = 1, USER = 2, GROUP_OBJ = 4, MASK = 16, OTHER = 32 };
static const uint32_t NONE = -1;
#define PLAIN (4 + 3 * 8)
#define LONG (4 + 5 * 8)

/* What a mode says. */
static struct acl plain(int mode) {
    return (struct acl){2, {{USER_OBJ, mode >> 6 & 7, NONE}, {GROUP_OBJ, mode >> 3 & 7, NONE}, {OTHER, mode & 7, NONE}}};
}

static struct acl named(void) {
    return (struct acl){
        2, {{USER_OBJ, 7, NONE}, {USER, 6, 1000}, {GROUP_OBJ, 5, NONE}, {MASK, 6, NONE}, {OTHER, 0, NONE}}};
}

static void show_acl(const char *name) {
    struct acl a;
    ssize_t n = getxattr(in(name), ACCESS, &a, sizeof a);
    printf("%s: %zd %s\n", name, n, n < 0 ? strerrorname_np(errno) : "");
    for (ssize_t i = 0; n > 4 && i < (n - 4) / 8; i++)
        printf("%d %d %d\n", a.entries[i].tag, a.entries[i].perm, (int)a.entries[i].id);
    look(name);
}

int main(int argc, char **argv) {
    begin(argc, argv);
    struct acl a = plain(0644);
    int fd = open(in("f"), O_RDWR | O_CREAT, 0600);
    show_acl("f");
    /* As a mode is copied: no ACL comes of it. */
    SAY(fsetxattr(fd, ACCESS, &a, PLAIN, 0));
    show_acl("f");
    SAY(flistxattr(fd, NULL, 0));
    SAY(fchmod(fd, 02755));
    a = plain(0710);
    SAY(setxattr(in("f"), ACCESS, &a, PLAIN, 0));
    show_acl("f");
    /* One that says more than the mode. */
    a = named();
    SAY(setxattr(in("f"), ACCESS, &a, LONG, 0));
    show_acl("f");
    SAY(chmod(in("f"), 0640));
    show_acl("f");
    SAY(fchmod(fd, 0604));
    show_acl("f");
    SAY(fchmodat(AT_FDCWD, in("f"), 0777, 0));
    show_acl("f");
    a = plain(0444);
    SAY(lsetxattr(in("f"), ACCESS, &a, PLAIN, 0));
    show_acl("f");
    a = named();
    SAY(fsetxattr(fd, ACCESS, &a, LONG, 0));
    SAY(fremovexattr(fd, ACCESS));
    SAY(fremovexattr(fd, ACCESS));
    SAY(removexattr(in("f"), ACCESS));
    show_acl("f");
    /* What is none. */
    SAY(fsetxattr(fd, ACCESS, &a, 0, 0));
    SAY(fsetxattr(fd, ACCESS, &a, 4, 0));
    SAY(fsetxattr(fd, ACCESS, &a, LONG - 1, 0));
    a.entries[0].tag = USER;
    SAY(fsetxattr(fd, ACCESS, &a, LONG, 0));
    a = named();
    SAY(setxattr(in("none"), ACCESS, &a, LONG, 0));
    SAY(fsetxattr(fd, DEFAULT, &a, LONG, 0));
    show_acl("f");
    SAY(mkdir(in("d"), 0755));
    SAY(setxattr(in("d"), DEFAULT, &a, LONG, 0));
    SAY(setxattr(in("d"), DEFAULT, &a, LONG - 8, 0));
    SAY(getxattr(in("d"), DEFAULT, &a, sizeof a));
    SAY(removexattr(in("d"), DEFAULT));
    SAY(getxattr(in("d"), DEFAULT, &a, sizeof a));
    show_acl("d");
    SAY(symlink("f", in("l")));
    a = named();
    SAY(lsetxattr(in("l"), ACCESS, &a, LONG, 0));
    SAY(setxattr(in("l"), ACCESS, &a, LONG, 0));
    SAY(chmod(in("l"), 0711));
    show_acl("f");
    SAY(close(fd));
    return 0;
}
