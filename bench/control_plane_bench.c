/* control_plane_bench.c: what the control plane costs: steps of the machines, PREPARE to COMMIT over gRPC, CPU and
 * bytes per membership change of large jobs, and the search for the healthy set.
 *
 * Usage: control_plane_bench [--quick] [--graphs FILE] [PART...], parts: steps grpc changes healthy. Prints one JSON
 * row per line. Results are checked while it measures; it must never decide whether a figure is good.
 */
#include "control_plane_bench.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/agent.h"
#include "coordinator/coord_state.h"
#include "unit/crowd/coord_crowd.h"

#define CHANGE_LIMIT 200u /* bytes per rank and membership change */

static bool quick;

_Noreturn static void stop(const char *why) {
    (void)fprintf(stderr, "control_plane_bench: %s\n", why);
    exit(1);
}

static int by_value(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return a < b ? -1 : a > b;
}

void bench_row(const bench_row_t *row, double *times_us, size_t count) {
    qsort(times_us, count, sizeof(*times_us), by_value);
    double median = count % 2u != 0 ? times_us[count / 2u] : (times_us[count / 2u - 1u] + times_us[count / 2u]) / 2.0;
    double p99 = times_us[(size_t)(0.99 * (double)count) < count ? (size_t)(0.99 * (double)count) : count - 1u];
    (void)printf(
        "{\"name\": \"%s\", \"backend\": \"%s\", \"transport\": \"%s\", \"ranks\": %u, \"size_bytes\": %" PRIu64
        ", \"n\": %zu, \"median_us\": %.3f, \"p99_us\": %.3f, \"ratio_vs\": {}",
        row->name, row->backend, row->transport, row->ranks, row->size_bytes, count, median, p99);
    if (row->per_second > 0) (void)printf(", \"per_second\": %.0f", row->per_second);
    (void)printf("%s}\n", row->more);
    (void)fflush(stdout);
}

/* ---- steps of the machines ---- */

/* Blocks of steps; a sample is the mean time of a step in one block. */
static void steps_row(const char *name, uint32_t ranks, double *blocks, size_t count, double per_second) {
    bench_row_t row = {
        .name = name, .backend = "machine", .transport = "none", .ranks = ranks, .per_second = per_second, .more = ""};
    bench_row(&row, blocks, count);
}

static void found_group(crowd_t *w, bool manual) {
    crowd_gather(w);
    for (uint32_t r = 0; r < w->ranks; r++) crowd_register(w, r, w->ranks, false, manual);
    crowd_settle(w);
    if (crowd_active(w, 1) != w->ranks) stop("the group did not form");
}

static void one_slot(crowd_t *w, uint32_t slot, bool activate) {
    mcpg_rankset_t set;
    mcpg__rankset_clear(&set);
    mcpg__rankset_add(&set, slot);
    uint64_t replies = w->replies;
    crowd_propose(w, 0, 1, activate ? &set : NULL, activate ? NULL : &set);
    crowd_settle(w);
    if (w->replies != replies + 1u || w->last_reply != MCPG_OK) stop("a proposal was not applied");
}

static void coord_steps(void) {
    enum { BLOCKS = 50 };
    double blocks[BLOCKS];
    crowd_t *w = crowd_new(64, 100);
    found_group(w, true);
    for (uint32_t r = 0; r < w->ranks; r++) crowd_heartbeat(w, r);
    uint64_t sum_ns = 0, sum_steps = 0;
    for (uint32_t b = 0; b < BLOCKS; b++) {
        crowd_count_reset(w);
        for (uint32_t k = 0; k < (quick ? 4u : 40u); k++)
            for (uint32_t r = 0; r < w->ranks; r++) {
                w->now_us += 200000u / w->ranks;
                crowd_heartbeat(w, r);
            }
        blocks[b] = (double)w->count.step_ns / (double)w->count.steps / 1000.0;
        sum_ns += w->count.step_ns;
        sum_steps += w->count.steps;
        if (w->count.kind_messages[MCPG_DOWN_HEARTBEAT_REPLY] != w->count.messages) stop("heartbeats did not agree");
    }
    steps_row("coord_heartbeat_step", w->ranks, blocks, BLOCKS, 1e9 * (double)sum_steps / (double)sum_ns);
    sum_ns = 0;
    sum_steps = 0;
    for (uint32_t b = 0; b < BLOCKS; b++) {
        crowd_count_reset(w);
        for (uint32_t k = 0; k < (quick ? 1u : 8u); k++) {
            one_slot(w, 5, false);
            crowd_join(w, 5, 1);
            one_slot(w, 5, true);
        }
        blocks[b] = (double)w->count.step_ns / (double)w->count.steps / 1000.0;
        sum_ns += w->count.step_ns;
        sum_steps += w->count.steps;
    }
    steps_row("coord_view_change_step", w->ranks, blocks, BLOCKS, 1e9 * (double)sum_steps / (double)sum_ns);
    if (mcpg_coord_check(w->coord) != NULL) stop(mcpg_coord_check(w->coord));
    crowd_free(w);
}

/* ---- an agent's steps: heartbeats with their replies, changes of rank states, links, views ---- */

typedef struct {
    mcpg_agent_t *machine;
    void *mem;
    mcpg_agent_effects_t fx;
    mcpg_time_t now;
    uint64_t steps, step_ns, digest;
    mcpg_view_id_t installed;
} agent_t;

static void agent_step(agent_t *a, mcpg_agent_event_t event) {
    event.now = a->now;
    mcpg_agent_effects_reset(&a->fx);
    uint64_t began = crowd_cpu_ns();
    mcpg_status_t status = mcpg_agent_step(a->machine, &event, &a->fx);
    a->step_ns += crowd_cpu_ns() - began;
    a->steps++;
    if (status != MCPG_OK) stop(mcpg_status_name(status));
    for (uint32_t i = 0; i < a->fx.count; i++) {
        const mcpg_agent_effect_t *e = &a->fx.items[i];
        if (e->kind == MCPG_AGENT_FX_SEND && e->u.send->kind == MCPG_UP_HEARTBEAT)
            a->digest = e->u.send->u.heartbeat.digest;
        if (e->kind == MCPG_AGENT_FX_DP_INSTALL) a->installed = e->u.dp_install->view.id;
    }
}

static void agent_hears(agent_t *a, const mcpg_down_msg_t *msg) {
    agent_step(a, (mcpg_agent_event_t){.kind = MCPG_AGENT_EV_MSG, .u.msg = msg});
}

static void agent_hears_states(agent_t *a, uint32_t first, uint32_t count, bool full, uint8_t state) {
    static mcpg_rank_info_t infos[MCPG_MAX_RANKS];
    static const uint8_t endpoint[100] = "endpoint";
    for (uint32_t i = 0; i < count; i++)
        infos[i] = (mcpg_rank_info_t){.rank = {first + i},
                                      .inc = {1, first + i + 1u},
                                      .state = state,
                                      .host_id = 5,
                                      .pid = 1000 + (int64_t)i,
                                      .endpoint = {endpoint, sizeof(endpoint)}};
    mcpg_down_msg_t msg = {.kind = MCPG_DOWN_RANK_STATES};
    msg.u.rank_states = (mcpg_down_rank_states_t){.full = full, .count = count, .ranks = infos};
    agent_hears(a, &msg);
}

static void agent_view(agent_t *a, uint32_t ranks, uint64_t epoch, bool without_last) {
    static mcpg_member_t members[MCPG_MAX_RANKS];
    static const mcpg_leave_t leave = {{63}, 3};
    for (uint32_t i = 0; i < ranks; i++) members[i] = (mcpg_member_t){{i}, {i}, {1, i + 1u}};
    mcpg_view_body_t body = {.id = {1, epoch}, .active_count = without_last ? ranks - 1u : ranks, .active = members};
    mcpg_down_msg_t msg = {.kind = MCPG_DOWN_PREPARE};
    msg.u.prepare = (mcpg_down_prepare_t){.gid = {1}, .view = body};
    agent_hears(a, &msg);
    agent_step(a, (mcpg_agent_event_t){.kind = MCPG_AGENT_EV_HELD, .u.held = {{1}, body.id, 3}});
    memset(&msg, 0, sizeof(msg));
    msg.kind = MCPG_DOWN_COMMIT;
    msg.u.commit = (mcpg_down_commit_t){
        .gid = {1}, .view = body, .switch_seq = 3, .leave_count = without_last ? 1u : 0u, .leaves = &leave};
    agent_hears(a, &msg);
    if (a->installed.epoch != epoch) stop("the agent did not install a view");
}

static void agent_begin(agent_t *a, uint32_t ranks) {
    mcpg_agent_config_t config = {.rank = {1},
                                  .session = {77},
                                  .host_id = 5,
                                  .pid = 100,
                                  .max_ranks = ranks,
                                  .max_groups = 8,
                                  .max_slots_total = 8u * ranks,
                                  .max_calls = 8,
                                  .max_reports = 8,
                                  .attach_timeout_us = 30000000,
                                  .seed = 1};
    config.timers = (mcpg_timers_t){.heartbeat_us = 200000,
                                    .offline_us = 5000000,
                                    .ack_us = 5000000,
                                    .ack_added_us = 1000000,
                                    .reconcile_us = 2000000,
                                    .coordinator_grace_us = 30000000,
                                    .collective_timeout_us = 1000000,
                                    .p2p_timeout_us = 10000000};
    size_t size = mcpg_agent_size(&config);
    memset(a, 0, sizeof(*a));
    a->mem = calloc(1, size);
    mcpg_agent_effects_worst(&config, &a->fx.cap, &a->fx.arena_cap);
    a->fx.items = calloc(a->fx.cap, sizeof(*a->fx.items));
    a->fx.arena = malloc(a->fx.arena_cap);
    if (a->mem == NULL || a->fx.items == NULL || a->fx.arena == NULL) stop("out of memory");
    if (mcpg_agent_init(a->mem, size, &config, &a->machine) != MCPG_OK) stop("the agent cannot be set up");
    a->now.us = 1000;
    agent_step(a, (mcpg_agent_event_t){.kind = MCPG_AGENT_EV_TIMER});
    agent_step(a, (mcpg_agent_event_t){.kind = MCPG_AGENT_EV_CONNECTED});
    mcpg_down_msg_t msg = {.kind = MCPG_DOWN_WELCOME};
    msg.u.welcome = (mcpg_down_welcome_t){
        .term = 1, .coordinator_id = 1, .inc = {1, 2}, .heartbeat_us = 200000, .offline_us = 5000000};
    agent_hears(a, &msg);
    agent_hears_states(a, 0, ranks, true, MCPG_RANK_HEALTHY);
    static uint32_t order[MCPG_MAX_RANKS];
    for (uint32_t r = 0; r < ranks; r++) order[r] = r;
    mcpg_agent_call_register_t call = {
        .call_id = 1, .order = order, .order_count = ranks, .capacity = ranks, .manual = true, .timeout_us = 60000000};
    agent_step(a, (mcpg_agent_event_t){.kind = MCPG_AGENT_EV_CALL_REGISTER, .u.call_register = call});
    memset(&msg, 0, sizeof(msg));
    msg.kind = MCPG_DOWN_REGISTERED;
    msg.u.registered = (mcpg_down_registered_t){
        .call_id = 1, .status = MCPG_OK, .gid = {1}, .slot = {1}, .capacity = ranks, .manual = true};
    agent_hears(a, &msg);
}

static void agent_steps(void) {
    enum { BLOCKS = 50, RANKS = 64 };
    double blocks[BLOCKS];
    agent_t a;
    uint64_t epoch = 0, sum_ns = 0, sum_steps = 0;
    agent_begin(&a, RANKS);
    agent_view(&a, RANKS, ++epoch, false);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        a.steps = 0;
        a.step_ns = 0;
        for (uint32_t k = 0; k < (quick ? 10u : 100u); k++) {
            mcpg_down_msg_t msg = {.kind = MCPG_DOWN_HEARTBEAT_REPLY};
            for (uint32_t h = 0; h < 8; h++) { /* heartbeats are most of what an agent does */
                a.now.us += 200000;
                agent_step(&a, (mcpg_agent_event_t){.kind = MCPG_AGENT_EV_TIMER});
                msg.u.heartbeat_reply = (mcpg_down_heartbeat_reply_t){.digest = a.digest, .sent_us = a.now.us};
                agent_hears(&a, &msg);
            }
            uint32_t peer = 2u + k % 60u;
            agent_hears_states(&a, peer, 1, false, MCPG_RANK_SYNCED);
            agent_step(&a, (mcpg_agent_event_t){.kind = MCPG_AGENT_EV_LINK,
                                                .u.link = {{peer}, {1, peer + 1u}, MCPG_LINK_UP, 0}});
            agent_hears_states(&a, peer, 1, false, MCPG_RANK_HEALTHY);
            epoch++;
            agent_view(&a, RANKS, epoch, epoch % 2u == 0);
        }
        blocks[b] = (double)a.step_ns / (double)a.steps / 1000.0;
        sum_ns += a.step_ns;
        sum_steps += a.steps;
    }
    steps_row("agent_mixed_step", RANKS, blocks, BLOCKS, 1e9 * (double)sum_steps / (double)sum_ns);
    if (mcpg_agent_check(a.machine) != NULL) stop(mcpg_agent_check(a.machine));
    free(a.mem);
    free(a.fx.items);
    free(a.fx.arena);
}

/* ---- what a membership change costs a large job ---- */

static void change_row(crowd_t *w, const char *name, double *cpu_us, size_t count, uint64_t bytes, bool limited) {
    char more[320];
    double per_rank = (double)bytes / (double)w->ranks;
    int used = snprintf(more, sizeof(more),
                        ", \"bytes_per_rank\": %.1f, \"bytes_up\": %" PRIu64 ", \"largest_message\": %" PRIu64,
                        per_rank, w->count.up_bytes, w->count.largest);
    if (limited && used > 0 && (size_t)used < sizeof(more))
        (void)snprintf(more + used, sizeof(more) - (size_t)used, ", \"limit_bytes_per_rank\": %u, \"within_limit\": %s",
                       CHANGE_LIMIT, per_rank <= CHANGE_LIMIT ? "true" : "false");
    bench_row_t row = {
        .name = name, .backend = "machine", .transport = "none", .ranks = w->ranks, .size_bytes = bytes, .more = more};
    bench_row(&row, cpu_us, count);
    for (uint32_t k = 0; k < MCPG_DOWN__COUNT; k++)
        if (w->count.kind_bytes[k] > 0)
            (void)fprintf(stderr, "  %-14s %5u ranks: %8.1f bytes per rank in %s\n", name, w->ranks,
                          (double)w->count.kind_bytes[k] / (double)w->ranks, mcpg__down_name((mcpg_down_kind_t)k));
}

/* Steps and packing, since the last reset. */
static double cpu_us(const crowd_t *w) {
    return (double)(w->count.step_ns + w->count.pack_ns) / 1000.0;
}

typedef struct {
    const char *name;
    bool limited;
    double cpu_us[16];
    uint64_t worst_bytes;
    crowd_count_t count; /* of the worst */
} change_t;

static void change_note(crowd_t *w, change_t *change, uint32_t round) {
    change->cpu_us[round] = cpu_us(w);
    if (w->count.bytes >= change->worst_bytes) change->count = w->count;
    if (w->count.bytes > change->worst_bytes) change->worst_bytes = w->count.bytes;
    crowd_count_reset(w);
}

static void changes(uint32_t ranks) {
    enum { LINKS, FORM, DEATH, COMES, REGISTERS, ACTIVATE, DEACTIVATE, KINDS };
    change_t all[KINDS] = {[LINKS] = {.name = "gather"},
                           [FORM] = {.name = "form_group"},
                           [DEATH] = {.name = "death", .limited = true},
                           [COMES] = {.name = "replacement_attach"},
                           [REGISTERS] = {.name = "replacement_register"},
                           [ACTIVATE] = {.name = "activate", .limited = true},
                           [DEACTIVATE] = {.name = "deactivate", .limited = true}};
    uint32_t rounds = quick ? 2 : 8;
    crowd_t *w = crowd_new(ranks, 100);
    crowd_gather(w);
    change_note(w, &all[LINKS], 0);
    for (uint32_t r = 0; r < ranks; r++) crowd_register(w, r, ranks, false, false);
    crowd_settle(w);
    if (crowd_active(w, 1) != ranks) stop("the group did not form");
    change_note(w, &all[FORM], 0);
    for (uint32_t i = 0; i < rounds; i++) {
        uint32_t rank = 1u + i * 7u % (ranks - 1u);
        crowd_exit(w, rank);
        crowd_settle(w);
        if (crowd_active(w, 1) != ranks - 1u) stop("a death did not lead to a view");
        change_note(w, &all[DEATH], i);
        crowd_attach(w, rank);
        for (uint32_t peer = 0; peer < ranks; peer++)
            if (peer != rank) crowd_link(w, rank, peer);
        crowd_settle(w);
        change_note(w, &all[COMES], i);
        crowd_register(w, rank, ranks, true, false);
        crowd_join(w, rank, 1);
        crowd_settle(w);
        change_note(w, &all[REGISTERS], i);
        one_slot(w, rank, true);
        if (crowd_active(w, 1) != ranks) stop("the replacement was not activated");
        change_note(w, &all[ACTIVATE], i);
        one_slot(w, rank, false);
        if (crowd_active(w, 1) != ranks - 1u) stop("the rank was not deactivated");
        change_note(w, &all[DEACTIVATE], i);
        crowd_join(w, rank, 1);
        one_slot(w, rank, true);
        crowd_count_reset(w);
    }
    if (mcpg_coord_check(w->coord) != NULL) stop(mcpg_coord_check(w->coord));
    for (uint32_t k = 0; k < KINDS; k++) {
        w->count = all[k].count;
        change_row(w, all[k].name, all[k].cpu_us, k <= FORM ? 1 : rounds, all[k].worst_bytes, all[k].limited);
    }
    crowd_free(w);
}

/* ---- the healthy set ---- */

typedef struct {
    uint32_t n;
    uint64_t rows[MCPG_MAX_RANKS][MCPG_RANKSET_WORDS];
    mcpg_rankset_t members, active;
} graph_t;

static uint64_t draw(uint64_t *seed) {
    *seed ^= *seed << 13u;
    *seed ^= *seed >> 7u;
    *seed ^= *seed << 17u;
    return *seed;
}

/* broken links between any ranks, or (hot > 0) all among that many: the harder case. */
static void graph_draw(graph_t *g, uint32_t n, uint32_t broken, uint32_t hot, uint64_t *seed) {
    memset(g, 0, sizeof(*g));
    g->n = n;
    for (uint32_t v = 0; v < n; v++) {
        mcpg__rankset_add(&g->members, v);
        if (draw(seed) % 2u != 0) mcpg__rankset_add(&g->active, v);
    }
    for (uint32_t v = 0; v < n; v++) {
        memcpy(g->rows[v], g->members.w, sizeof(g->rows[v]));
        mcpg__bit_put(g->rows[v], v, false);
    }
    for (uint32_t i = 0; i < broken;) { /* bounded: far fewer than there are pairs */
        uint32_t among = hot > 0 ? hot : n, a = (uint32_t)(draw(seed) % among), b = (uint32_t)(draw(seed) % among);
        if (a == b || !mcpg__bit_get(g->rows[a], b)) continue;
        mcpg__bit_put(g->rows[a], b, false);
        mcpg__bit_put(g->rows[b], a, false);
        i++;
    }
}

static void graph_print(FILE *file, const graph_t *g, uint32_t size) {
    (void)fprintf(file, "%u %u", g->n, size);
    for (uint32_t a = 0; a < g->n; a++)
        for (uint32_t b = a + 1; b < g->n; b++)
            if (!mcpg__bit_get(g->rows[a], b)) (void)fprintf(file, " %u-%u", a, b);
    (void)fprintf(file, "\n");
}

static void healthy(const char *graphs_path) {
    enum { GRAPHS = 100, N = 1024, BROKEN = 64 };
    static graph_t g;
    static double took[GRAPHS];
    FILE *file = graphs_path != NULL ? fopen(graphs_path, "w") : NULL;
    if (graphs_path != NULL && file == NULL) stop("the file for the graphs cannot be written");
    for (uint32_t hot = 0; hot <= 16; hot += 16) {
        uint64_t seed = 4711 + hot;
        uint32_t exact = 0;
        for (uint32_t i = 0; i < GRAPHS; i++) {
            graph_draw(&g, N, BROKEN, hot, &seed);
            mcpg_rankset_t nobody, out;
            mcpg__rankset_clear(&nobody);
            mcpg_coord_graph_t graph = {.n = N,
                                        .words = MCPG_RANKSET_WORDS,
                                        .adjacency = &g.rows[0][0],
                                        .members = &g.members,
                                        .active = i % 2u != 0 ? &g.active : &nobody,
                                        .node_budget = 20000};
            uint64_t began = crowd_cpu_ns();
            exact += mcpg__coord_clique(&graph, &out) ? 1u : 0u;
            took[i] = (double)(crowd_cpu_ns() - began) / 1000.0;
            if (file != NULL && i == 0) graph_print(file, &g, mcpg__rankset_count(&out));
        }
        char more[64];
        (void)snprintf(more, sizeof(more), ", \"exact\": %u, \"limit_us\": 10000", exact);
        bench_row_t row = {.name = hot > 0 ? "healthy_set_among_16" : "healthy_set",
                           .backend = "mooncake",
                           .transport = "none",
                           .ranks = N,
                           .more = more};
        bench_row(&row, took, GRAPHS);
    }
    if (file != NULL) (void)fclose(file);
}

int main(int argc, char **argv) {
    const char *graphs = NULL;
    bool some = false, parts[4] = {false, false, false, false};
    static const char *const names[4] = {"steps", "grpc", "changes", "healthy"};
    for (int i = 1; i < argc; i++) {
        bool known = false;
        if (strcmp(argv[i], "--quick") == 0) known = quick = true;
        if (strcmp(argv[i], "--graphs") == 0 && i + 1 < argc) {
            graphs = argv[++i];
            continue;
        }
        for (uint32_t k = 0; k < 4; k++)
            if (strcmp(argv[i], names[k]) == 0) some = known = parts[k] = true;
        if (!known) stop("usage: control_plane_bench [--quick] [--graphs FILE] [steps|grpc|changes|healthy ...]");
    }
    if (!some || parts[0]) {
        coord_steps();
        agent_steps();
    }
    if ((!some || parts[1]) && (!bench_grpc(8, quick ? 20 : 300) || !bench_grpc(64, quick ? 5 : 100)))
        stop("the agents could not be started");
    if (!some || parts[2])
        for (uint32_t ranks = 64; ranks <= 1024; ranks *= 4) changes(ranks);
    if (!some || parts[3]) healthy(graphs);
    return 0;
}
