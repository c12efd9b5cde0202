/* pg_host.c: which processes may use shared memory, process ids and pidfds with each other. Never changes during a
 * process's life. */
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/pg_internal.h"
#include "common/pure.h"

static uint64_t namespace_of(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 ? (uint64_t)st.st_ino : 0;
}

/* Same boot, same network namespace (abstract unix sockets), same process namespace (pids mean the same). Shared memory
 * is passed as a descriptor over a socket, so that the IPC namespace does not matter. */
uint64_t mcpg__host_id(void) {
    char boot[64];
    memset(boot, 0, sizeof(boot));
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = -1;
    if (fd >= 0) {
        n = read(fd, boot, sizeof(boot) - 1);
        close(fd);
    }
    if (n <= 0) (void)gethostname(boot, sizeof(boot) - 1);
    uint64_t id = mcpg__digest_bytes(UINT64_C(0x6d6370675f686f73), boot, strlen(boot));
    id = mcpg__digest_u64(id, namespace_of("/proc/self/ns/net"));
    id = mcpg__digest_u64(id, namespace_of("/proc/self/ns/pid"));
    return id != 0 ? id : 1;
}
