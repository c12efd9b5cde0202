/* mooncake_coordinator.c: a coordinator in a process of its own, so that any rank of the job may die.
 *
 * Uses nothing but the public API. Prints the address that agents connect to as its only line on stdout; diagnostics go
 * to stderr. SIGTERM or SIGINT: drains, stops, exits 0. Exit code 2: bad usage; 1: it could not start.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mooncake/pg.h"

typedef struct {
    const char *bind, *event_log_dir, *address_file;
    const char *tls_ca, *tls_cert, *tls_key, *token_file;
    uint64_t term;
    bool fresh, help, version;
} options_t;

static void usage(FILE *to) {
    (void)fprintf(
        to,
        "usage: mooncake-coordinator [options]\n"
        "  --bind ADDRESS         127.0.0.1:PORT, [::1]:PORT, localhost:PORT or unix:/path (default 127.0.0.1:0, any "
        "port);\n"
        "                         IP:PORT of this host, with TLS\n"
        "  --tls-cert FILE, --tls-key FILE   serve with TLS (default MOONCAKE_TLS_CERT, MOONCAKE_TLS_KEY)\n"
        "  --tls-ca FILE          ask every rank for a certificate that this CA signed (default MOONCAKE_TLS_CA)\n"
        "  --token-file FILE      ask every rank for this token (default MOONCAKE_TOKEN_FILE)\n"
        "  --term N               higher than any earlier coordinator's of this job (default: milliseconds since "
        "1970)\n"
        "  --fresh                there was no coordinator before: take newcomers at once, not after\n"
        "                         MOONCAKE_SETTLE_US\n"
        "  --event-log-dir DIR    write the flight recorder there (default MOONCAKE_EVENT_LOG_DIR, else a folder\n"
        "                         of this user's own; off with MOONCAKE_EVENT_LOG=off)\n"
        "  --address-file PATH    write the address there when it is listening, remove the file at the end\n"
        "  --version, --help\n"
        "Agents find it with MOONCAKE_COORDINATOR=ADDRESS. Timers: MOONCAKE_HEARTBEAT_US and the others of pg.h.\n");
}

static bool parse_term(const char *text, uint64_t *out) {
    uint64_t value = 0;
    size_t len = strlen(text);
    if (len == 0 || len > 18) return false;
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        value = value * 10u + (uint64_t)(text[i] - '0');
    }
    if (value == 0) return false;
    *out = value;
    return true;
}

/* "--name VALUE" or "--name=VALUE" with that name. *value stays NULL when the value is missing. */
static bool is_option(int argc, char **argv, int *i, const char *name, const char **value) {
    const char *given = argv[*i];
    size_t len = strlen(name);
    if (strncmp(given, name, len) != 0 || (given[len] != '\0' && given[len] != '=')) return false;
    *value = NULL;
    if (given[len] == '=')
        *value = given + len + 1;
    else if (*i + 1 < argc)
        *value = argv[++*i];
    if (*value == NULL) (void)fprintf(stderr, "mooncake-coordinator: option '%s' needs a value\n", name);
    return true;
}

static bool parse_one(int argc, char **argv, int *i, options_t *o) {
    const char *given = argv[*i], *value = NULL;
    if (strcmp(given, "--help") == 0 || strcmp(given, "-h") == 0) return o->help = true;
    if (strcmp(given, "--version") == 0) return o->version = true;
    if (strcmp(given, "--fresh") == 0) return o->fresh = true;
    if (is_option(argc, argv, i, "--bind", &o->bind)) return o->bind != NULL;
    if (is_option(argc, argv, i, "--event-log-dir", &o->event_log_dir)) return o->event_log_dir != NULL;
    if (is_option(argc, argv, i, "--address-file", &o->address_file)) return o->address_file != NULL;
    if (is_option(argc, argv, i, "--tls-ca", &o->tls_ca)) return o->tls_ca != NULL;
    if (is_option(argc, argv, i, "--tls-cert", &o->tls_cert)) return o->tls_cert != NULL;
    if (is_option(argc, argv, i, "--tls-key", &o->tls_key)) return o->tls_key != NULL;
    if (is_option(argc, argv, i, "--token-file", &o->token_file)) return o->token_file != NULL;
    if (is_option(argc, argv, i, "--term", &value)) {
        if (value == NULL || parse_term(value, &o->term)) return value != NULL;
        (void)fprintf(
            stderr, "mooncake-coordinator: term '%s' is not a number from 1 on: leave --term out or give one\n", value);
        return false;
    }
    (void)fprintf(stderr, "mooncake-coordinator: unknown option '%s': see --help\n", given);
    return false;
}

/* The recorder itself only warns when it has no folder; who asks for one on the command line wants to know at once. */
static bool is_usable_dir(const char *dir) {
    struct stat st;
    if (dir == NULL) return true;
    if (stat(dir, &st) == 0 && S_ISDIR(st.st_mode) && access(dir, W_OK | X_OK) == 0) return true;
    (void)fprintf(stderr,
                  "mooncake-coordinator: event log folder '%s' does not exist or may not be written: create it first\n",
                  dir);
    return false;
}

/* Appears whole or not at all: a reader that waits for the file must never read half an address. */
static bool write_address(const char *path, const char *address) {
    char temporary[4096];
    int n = snprintf(temporary, sizeof temporary, "%s.tmp-%ld", path, (long)getpid());
    int fd =
        n > 0 && (size_t)n < sizeof temporary ? open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644) : -1;
    bool ok = fd >= 0 && dprintf(fd, "%s\n", address) > 0;
    if (fd >= 0 && close(fd) != 0) ok = false;
    if (ok && rename(temporary, path) == 0) return true;
    (void)fprintf(
        stderr,
        "mooncake-coordinator: cannot write address file '%s' (%s): give a path in a folder that may be written\n",
        path, strerror(errno));
    if (fd >= 0) (void)unlink(temporary);
    return false;
}

static int run(const options_t *o) {
    sigset_t stop;
    (void)sigemptyset(&stop);
    (void)sigaddset(&stop, SIGTERM);
    (void)sigaddset(&stop, SIGINT);
    (void)pthread_sigmask(SIG_BLOCK, &stop,
                          NULL); /* before any thread: all of them inherit it, sigwait below gets the signal */
    (void)signal(SIGPIPE, SIG_IGN);
    mcpg_coordinator_config_t config = MCPG_COORDINATOR_CONFIG_INITIALIZER;
    config.bind = o->bind;
    config.term = o->term;
    config.fresh = o->fresh;
    config.event_log_dir = o->event_log_dir;
    config.tls_ca = o->tls_ca;
    config.tls_cert = o->tls_cert;
    config.tls_key = o->tls_key;
    config.token_file = o->token_file;
    mcpg_coordinator_t *coordinator = NULL;
    char error[512] = "", address[256];
    mcpg_status_t status = mcpg_coordinator_start(&config, &coordinator, error, sizeof error);
    if (status != MCPG_OK) {
        (void)fprintf(stderr, "mooncake-coordinator: %s\n", error[0] != '\0' ? error : mcpg_status_text(status));
        return status == MCPG_INVALID_ARGUMENT ? 2 : 1;
    }
    (void)mcpg_coordinator_address(coordinator, address, sizeof address);
    bool ok = o->address_file == NULL || write_address(o->address_file, address);
    if (ok) {
        (void)printf("%s\n", address);
        (void)fflush(stdout);
        int got = 0;
        (void)sigwait(&stop, &got);
        if (o->address_file != NULL) (void)unlink(o->address_file);
    }
    mcpg_coordinator_stop(coordinator);
    return ok ? 0 : 1;
}

int main(int argc, char **argv) {
    options_t o = {.term = 0};
    for (int i = 1; i < argc; i++) {
        if (parse_one(argc, argv, &i, &o)) continue;
        return 2;
    }
    if (o.help) {
        usage(stdout);
        return 0;
    }
    if (o.version) {
        (void)printf("mooncake-coordinator %s\n", mcpg_version());
        return 0;
    }
    if (!is_usable_dir(o.event_log_dir)) return 2;
    return run(&o);
}
