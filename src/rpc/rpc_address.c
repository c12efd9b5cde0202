/* rpc_address.c: parses coordinator addresses. Never resolves names, never opens a socket. */
#include "rpc/rpc_address.h"

#include <arpa/inet.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static mcpg_status_t refuse(char *error, size_t error_cap, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static mcpg_status_t refuse(char *error, size_t error_cap, const char *fmt, ...) {
    if (error != NULL && error_cap > 0) {
        va_list args;
        va_start(args, fmt);
        (void)vsnprintf(error, error_cap, fmt, args);
        va_end(args);
    }
    return MCPG_INVALID_ARGUMENT;
}

static bool parse_port(const char *text, uint16_t *out) {
    size_t len = strlen(text);
    if (len == 0 || len > 5) return false;
    uint32_t value = 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        value = value * 10u + (uint32_t)(text[i] - '0');
    }
    if (value > UINT16_MAX) return false;
    *out = (uint16_t)value;
    return true;
}

static mcpg_status_t parse_unix(const char *text, mcpg_rpc_address_t *out, char *error, size_t error_cap) {
    const char *path = text + strlen("unix:");
    size_t len = strlen(path);
    if (path[0] != '/')
        return refuse(error, error_cap, "address '%s' has no absolute path: write unix:/path/of/the/socket", text);
    if (len >= sizeof out->path)
        return refuse(error, error_cap, "address '%s' has a path of %zu bytes, sockets allow %zu: use a shorter path",
                      text, len, sizeof out->path - 1);
    memset(out, 0, sizeof *out);
    out->is_unix = out->is_loopback = true;
    memcpy(out->path, path, len + 1);
    return MCPG_OK;
}

/* Splits "host:port" or "[host]:port"; false when it is neither. */
static bool split(const char *text, mcpg_rpc_address_t *a) {
    const char *colon = strrchr(text, ':');
    if (colon == NULL || !parse_port(colon + 1, &a->port)) return false;
    const char *host = text;
    size_t len = (size_t)(colon - text);
    if (len >= 2 && host[0] == '[' && host[len - 1] == ']') {
        host++;
        len -= 2;
        a->is_v6 = true;
    }
    if (len == 0 || len >= sizeof a->host || (!a->is_v6 && memchr(host, ':', len) != NULL)) return false;
    memcpy(a->host, host, len);
    a->host[len] = '\0';
    return true;
}

/* False: not a numeric address. */
static bool judge_host(mcpg_rpc_address_t *a) {
    struct in6_addr v6;
    struct in_addr v4;
    if (a->is_v6) {
        if (inet_pton(AF_INET6, a->host, &v6) != 1) return false;
        a->is_loopback = IN6_IS_ADDR_LOOPBACK(&v6);
        return true;
    }
    if (strcmp(a->host, "localhost") == 0) /* no resolver: gRPC's would wait seconds between tries */
        memcpy(a->host, "127.0.0.1", sizeof "127.0.0.1");
    if (inet_pton(AF_INET, a->host, &v4) != 1) return false;
    a->is_loopback = (ntohl(v4.s_addr) >> 24) == 127u;
    return true;
}

mcpg_status_t mcpg__rpc_address_parse(const char *text, bool for_bind, mcpg_rpc_address_t *out, char *error,
                                      size_t error_cap) {
    if (text == NULL || text[0] == '\0')
        return refuse(error, error_cap,
                      "the coordinator address is empty: write 127.0.0.1:PORT, [::1]:PORT or unix:/path");
    if (strncmp(text, "unix:", 5) == 0) return parse_unix(text, out, error, error_cap);
    mcpg_rpc_address_t a;
    memset(&a, 0, sizeof a);
    a.is_tls = strncmp(text, "tls:", 4) == 0;
    if (!split(a.is_tls ? text + 4 : text, &a))
        return refuse(error, error_cap,
                      "address '%s' is not understood: write 127.0.0.1:PORT, [::1]:PORT, localhost:PORT, IP:PORT or "
                      "unix:/path",
                      text);
    if (!judge_host(&a))
        return refuse(error, error_cap,
                      "address '%s' is not loopback and not a numeric address: names are not looked up, write the "
                      "host's IP (see \"getent hosts NAME\")",
                      text);
    if (!for_bind && a.port == 0)
        return refuse(error, error_cap,
                      "coordinator address '%s' has port 0: give the port that the coordinator printed", text);
    *out = a;
    return MCPG_OK;
}

size_t mcpg__rpc_address_text(const mcpg_rpc_address_t *a, char *buf, size_t cap) {
    int n = a->is_unix ? snprintf(buf, cap, "unix:%s", a->path)
                       : snprintf(buf, cap, "%s%s%s%s:%u", a->is_tls ? "tls:" : "", a->is_v6 ? "[" : "", a->host,
                                  a->is_v6 ? "]" : "", (unsigned)a->port);
    return n < 0 ? 0 : (size_t)n;
}

size_t mcpg__rpc_copy_text(const char *text, char *buf, size_t cap) {
    size_t len = strlen(text);
    if (cap > 0) {
        size_t n = len < cap - 1 ? len : cap - 1;
        memcpy(buf, text, n);
        buf[n] = '\0';
    }
    return len;
}
