/* rpc_grpc_listen.c: listens, hands plaintext connections to gRPC, can cut them. Never reads or writes a byte of them.
 */
#include "rpc/rpc_grpc_listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grpc/grpc_posix.h>
#include <grpc/grpc_security.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "rpc/rpc_grpc_impl.h"

#define MAX_CONNECTIONS (2u * MCPG_MAX_RANKS) /* every rank, and as many strangers */
#define MIN_CONNECTIONS 32u
#define OWN_FDS         256u /* descriptors that are left to the rest of the process */
#define FDS_EACH        2u
#define PAUSE_MS        100 /* out of descriptors: look again after this */
#define FIXED           2u  /* places 0 and 1 of the poll set: wake_fd and listen_fd */

struct mcpg_glisten {
    mcpg_rpc_address_t address;
    int listen_fd, wake_fd, lock_fd;
    grpc_server *server;
    grpc_server_credentials *creds;
    pthread_t thread;
    bool is_running;
    uint32_t limit;
    uint32_t count; /* of connections; accepting thread, after it the one that stops */
    struct pollfd polls[FIXED + MAX_CONNECTIONS];
};

/* ---- opening ---- */

static void lock_name(const mcpg_rpc_address_t *a, char *buf, size_t cap) {
    (void)snprintf(buf, cap, "%s.lock", a->path);
}

/* A second server would silently take a unix path over: a lock file beside it says who has it. Dies with the process.
 */
static mcpg_status_t lock_unix(mcpg_glisten_t *l, char *error, size_t error_cap) {
    char name[sizeof l->address.path + 8];
    lock_name(&l->address, name, sizeof name);
    for (int tries = 0; tries < 8; tries++) { /* bounded: again only when another server removed the file in between */
        int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0) {
            (void)snprintf(error, error_cap,
                           "cannot create '%s' (%s): give a unix:/path in a folder that this user may write", name,
                           strerror(errno));
            return MCPG_SYSTEM;
        }
        if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
            (void)close(fd);
            (void)snprintf(error, error_cap, "'unix:%s' is served by another coordinator: stop it or give another path",
                           l->address.path);
            return MCPG_SYSTEM;
        }
        struct stat here, there;
        if (fstat(fd, &here) == 0 && stat(name, &there) == 0 && here.st_ino == there.st_ino &&
            here.st_dev == there.st_dev) {
            l->lock_fd = fd;
            return MCPG_OK;
        }
        (void)close(fd);
    }
    (void)snprintf(error, error_cap, "'%s' keeps being replaced: give another path", name);
    return MCPG_SYSTEM;
}

static socklen_t to_sockaddr(const mcpg_rpc_address_t *a, struct sockaddr_storage *out) {
    memset(out, 0, sizeof *out);
    if (a->is_unix) {
        struct sockaddr_un *un = (struct sockaddr_un *)out;
        un->sun_family = AF_UNIX;
        memcpy(un->sun_path, a->path, sizeof un->sun_path);
        return sizeof *un;
    }
    if (a->is_v6) {
        struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(a->port);
        (void)inet_pton(AF_INET6, a->host, &v6->sin6_addr);
        return sizeof *v6;
    }
    struct sockaddr_in *v4 = (struct sockaddr_in *)out;
    v4->sin_family = AF_INET;
    v4->sin_port = htons(a->port);
    (void)inet_pton(AF_INET, a->host, &v4->sin_addr);
    return sizeof *v4;
}

static bool learn_port(mcpg_glisten_t *l) {
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    memset(&at, 0, sizeof at);
    if (getsockname(l->listen_fd, (struct sockaddr *)&at, &len) != 0) return false;
    l->address.port =
        ntohs(l->address.is_v6 ? ((struct sockaddr_in6 *)&at)->sin6_port : ((struct sockaddr_in *)&at)->sin_port);
    return true;
}

static bool listen_on(mcpg_glisten_t *l) {
    struct sockaddr_storage at;
    socklen_t len = to_sockaddr(&l->address, &at);
    l->listen_fd = socket(at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (l->listen_fd < 0) return false;
    int on = 1;
    if (!l->address.is_unix) (void)setsockopt(l->listen_fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (l->address.is_unix) (void)unlink(l->address.path); /* left by a dead server: the lock is ours */
    if (bind(l->listen_fd, (struct sockaddr *)&at, len) != 0) return false;
    if (l->address.is_unix && chmod(l->address.path, 0600) != 0) return false; /* before anybody can connect */
    if (listen(l->listen_fd, 512) != 0) return false;
    return l->address.is_unix || learn_port(l);
}

mcpg_status_t mcpg__glisten_open(const mcpg_rpc_address_t *address, mcpg_glisten_t **out, char *error,
                                 size_t error_cap) {
    mcpg_glisten_t *l = (mcpg_glisten_t *)calloc(1, sizeof *l);
    if (l == NULL) return MCPG_NO_MEMORY;
    l->address = *address;
    l->listen_fd = l->lock_fd = -1;
    l->limit = mcpg__gconn_limit(FDS_EACH);
    l->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    mcpg_status_t status = l->wake_fd < 0 ? MCPG_SYSTEM : MCPG_OK;
    if (status == MCPG_OK && address->is_unix) status = lock_unix(l, error, error_cap);
    if (status == MCPG_OK && !listen_on(l)) {
        int why = errno;
        char text[160];
        (void)mcpg__rpc_address_text(address, text, sizeof text);
        (void)snprintf(error, error_cap, "cannot listen on '%s' (%s): give another %s", text, strerror(why),
                       address->is_unix ? "path" : "address, or port 0 for any free one");
        status = MCPG_SYSTEM;
    }
    if (status != MCPG_OK) {
        mcpg__glisten_free(l);
        return status;
    }
    *out = l;
    return MCPG_OK;
}

const mcpg_rpc_address_t *mcpg__glisten_address(const mcpg_glisten_t *l) {
    return &l->address;
}

int mcpg__glisten_take(mcpg_glisten_t *l) {
    int fd = l->listen_fd;
    l->listen_fd = -1;
    return fd;
}

uint32_t mcpg__gconn_limit(uint32_t fds_each) {
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0 || r.rlim_cur > (rlim_t)MAX_CONNECTIONS * fds_each + OWN_FDS)
        return MAX_CONNECTIONS;
    uint32_t limit = r.rlim_cur > OWN_FDS ? ((uint32_t)r.rlim_cur - OWN_FDS) / fds_each : 0;
    return limit > MIN_CONNECTIONS ? limit : MIN_CONNECTIONS;
}

/* ---- accepting ---- */

/* A unix socket's mode keeps others out already; whoever got the descriptor in another way is asked who he is. */
static bool is_same_user(const mcpg_glisten_t *l, int fd) {
    struct ucred peer;
    socklen_t len = sizeof peer;
    if (!l->address.is_unix) return true;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 && (peer.uid == geteuid() || peer.uid == 0);
}

static void prepare(const mcpg_glisten_t *l, int fd) {
    if (l->address.is_unix) return;
    int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/* False: out of descriptors, pause. */
static bool accept_some(mcpg_glisten_t *l) {
    for (uint32_t i = 0; i < 64; i++) { /* bounded: others get their turn, poll comes back at once */
        int fd = accept4(l->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
        bool is_welcome = l->count < l->limit && is_same_user(l, fd);
        int twin = is_welcome ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
        if (twin < 0) {
            (void)close(fd);
            continue;
        }
        prepare(l, fd);
        l->polls[FIXED + l->count++] = (struct pollfd){.fd = twin};
        grpc_server_add_channel_from_fd(l->server, fd, l->creds);
    }
    return true;
}

/* gRPC shuts its descriptor down when it is through with it: the twin shows that as a hang-up. */
static void drop_ended(mcpg_glisten_t *l) {
    for (uint32_t i = 0; i < l->count;) {
        struct pollfd *p = &l->polls[FIXED + i];
        if ((p->revents & (POLLHUP | POLLERR | POLLNVAL)) == 0) {
            i++;
            continue;
        }
        (void)shutdown(p->fd, SHUT_RDWR);
        (void)close(p->fd);
        *p = l->polls[FIXED + --l->count];
    }
}

static void *accept_main(void *arg) {
    mcpg_glisten_t *l = (mcpg_glisten_t *)arg;
    bool is_paused = false;
    for (;;) {
        l->polls[0] = (struct pollfd){.fd = l->wake_fd, .events = POLLIN};
        l->polls[1] = (struct pollfd){.fd = is_paused ? -1 : l->listen_fd, .events = POLLIN};
        int n = poll(l->polls, FIXED + l->count, is_paused ? PAUSE_MS : -1);
        if (n < 0 && errno != EINTR) return NULL;
        is_paused = false;
        if (n <= 0) continue;
        if (l->polls[0].revents != 0) return NULL;
        bool is_asked = l->polls[1].revents != 0;
        drop_ended(l);
        if (is_asked) is_paused = !accept_some(l);
    }
}

mcpg_status_t mcpg__glisten_start(mcpg_glisten_t *l, grpc_server *server) {
    l->server = server;
    l->creds = grpc_insecure_server_credentials_create();
    sigset_t all, old;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&l->thread, NULL, accept_main, l);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0) return MCPG_SYSTEM;
    (void)pthread_setname_np(l->thread, "mcpg-rpc-acc");
    l->is_running = true;
    return MCPG_OK;
}

void mcpg__glisten_stop(mcpg_glisten_t *l) {
    if (!l->is_running) return;
    uint64_t one = 1;
    ssize_t n = write(l->wake_fd, &one, sizeof one);
    MCPG_ASSERT(n == (ssize_t)sizeof one);
    (void)pthread_join(l->thread, NULL);
    l->is_running = false;
    (void)close(l->listen_fd); /* whoever is still in the queue is refused */
    l->listen_fd = -1;
}

void mcpg__glisten_cut(mcpg_glisten_t *l) {
    for (uint32_t i = 0; i < l->count; i++) (void)shutdown(l->polls[FIXED + i].fd, SHUT_RDWR);
}

void mcpg__glisten_free(mcpg_glisten_t *l) {
    if (l == NULL) return;
    for (uint32_t i = 0; i < l->count; i++) (void)close(l->polls[FIXED + i].fd);
    if (l->listen_fd >= 0) (void)close(l->listen_fd);
    if (l->wake_fd >= 0) (void)close(l->wake_fd);
    if (l->lock_fd >= 0) {
        char name[sizeof l->address.path + 8];
        lock_name(&l->address, name, sizeof name);
        (void)unlink(l->address.path);
        (void)unlink(name); /* still locked: whoever opened it meanwhile sees that it is gone and opens a new one */
        (void)close(l->lock_fd);
    }
    if (l->creds != NULL) grpc_server_credentials_release(l->creds);
    free(l);
}
