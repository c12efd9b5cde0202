/* script_world.c: the commands of the scripts (tests/script/README.md) and how their effects are shown.
 *
 * It plays the agents only as far as it is told: with `auto on` they ACK every PREPARE and COMMIT. It must never hide
 * an effect, except heartbeats' replies and the timer.
 */
#include "script/script_world.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/coord_host_codec.h"
#include "script/render.h"

/* ---- stepping ---- */

static void note_msg(world_t *w, uint32_t rank, const mcpg_down_msg_t *msg) {
    actor_t *a = &w->actors[rank];
    mcpg_gid_t gid = {0};
    mcpg_view_id_t view = {0, 0};
    bool commit = msg->kind == MCPG_DOWN_COMMIT;
    script_known_note(w, rank, msg);
    if (msg->kind == MCPG_DOWN_WELCOME) {
        a->inc = msg->u.welcome.inc;
        a->term = msg->u.welcome.term;
    }
    if (msg->kind == MCPG_DOWN_PREPARE) {
        gid = msg->u.prepare.gid;
        view = a->prepared[SCRIPT_GROUP(gid)] = msg->u.prepare.view.id;
    }
    if (commit) {
        gid = msg->u.commit.gid;
        view = a->committed[SCRIPT_GROUP(gid)] = msg->u.commit.view.id;
        if (msg->u.commit.sync) a->seq[SCRIPT_GROUP(gid)] = msg->u.commit.switch_seq;
    }
    if (msg->kind == MCPG_DOWN_RANK_STATES && msg->u.rank_states.check_id != 0) {
        w->check_id = msg->u.rank_states.check_id;
        mcpg__rankset_clear(&w->suspects);
        for (uint32_t i = 0; i < msg->u.rank_states.count; i++)
            mcpg__rankset_add(&w->suspects, msg->u.rank_states.ranks[i].rank.v);
    }
    if (gid.v == 0 || !w->automatic || a->mute || w->queue_tail - w->queue_head >= QUEUE) return;
    uint32_t at = w->queue_tail++ % QUEUE;
    w->queue[at].rank = rank;
    w->queue[at].commit = commit;
    w->queue[at].gid = gid;
    w->queue[at].view = view;
}

static uint32_t rank_of_conn(const world_t *w, uint64_t conn) {
    for (uint32_t r = 0; r < RANKS; r++)
        if (w->actors[r].conn == conn) return r;
    return RANKS;
}

static void take_effect(world_t *w, const mcpg_coord_effect_t *e) {
    bool quiet = e->kind == MCPG_COORD_FX_ARM_TIMER && !w->show_timer;
    quiet = quiet || (e->kind == MCPG_COORD_FX_SEND_CONN && e->msg->kind == MCPG_DOWN_HEARTBEAT_REPLY);
    if (!quiet) render_effect(w->out, e);
    switch (e->kind) {
    case MCPG_COORD_FX_SEND:
        for (uint32_t r = mcpg__rankset_next(e->to, 0); r < RANKS; r = mcpg__rankset_next(e->to, r + 1))
            note_msg(w, r, e->msg);
        if (e->msg->kind == MCPG_DOWN_RANK_STATES && e->msg->u.rank_states.check_id != 0) w->asked = *e->to;
        break;
    case MCPG_COORD_FX_SEND_CONN:
        if (rank_of_conn(w, e->conn) < RANKS) note_msg(w, rank_of_conn(w, e->conn), e->msg);
        break;
    case MCPG_COORD_FX_CLOSE_CONN:
        if (rank_of_conn(w, e->conn) < RANKS) w->actors[rank_of_conn(w, e->conn)].conn = 0;
        break;
    case MCPG_COORD_FX_ARM_TIMER:
        w->timer = e->at.us;
        break;
    case MCPG_COORD_FX_STOP:
        w->stopped = true;
        break;
    case MCPG_COORD_FX_RECORD_CLAIM:
    case MCPG_COORD_FX_RECORD_WRITE:
    case MCPG_COORD_FX__COUNT:
        break;
    }
}

/* `script_coord --log` writes what the machine gets, as a host does. */
static void record_event(world_t *w, const mcpg_coord_event_t *event) {
    if (w->log == NULL) return;
    mcpg__coord_log_event(w->log, ++w->log_seq, event, NULL, 0, w->log_buf);
}

static void record_effects(world_t *w, mcpg_time_t now, mcpg_status_t status) {
    if (w->log == NULL) return;
    uint32_t count = status == MCPG_OK ? w->fx.count : 0;
    uint32_t crc = count > 0 ? mcpg__coord_effects_crc(&w->fx, w->log_buf, MCPG_COORD_EVENT_CAP) : 0;
    mcpg__coord_log_effects(w->log, w->log_seq, now, count, crc, w->coord);
}

void script_step(world_t *w, const mcpg_coord_event_t *event) {
    if (event->kind == MCPG_COORD_EV_TIMER) w->timer = UINT64_MAX;
    mcpg_coord_effects_reset(&w->fx);
    uint64_t before = mcpg_coord_digest(w->coord);
    record_event(w, event);
    mcpg_status_t status = mcpg_coord_step(w->coord, event, &w->fx);
    record_effects(w, event->now, status);
    if (status != MCPG_OK) {
        fprintf(w->out, "  rejected %s\n", mcpg_status_name(status));
        if (before != mcpg_coord_digest(w->coord)) {
            fprintf(w->out, "  BROKEN: a rejected event changed the state\n");
            w->failed = true;
        }
        return;
    }
    for (uint32_t i = 0; i < w->fx.count; i++) take_effect(w, &w->fx.items[i]);
    const char *broken = mcpg_coord_check(w->coord);
    if (broken == NULL) return;
    fprintf(w->out, "  BROKEN: %s\n", broken);
    w->failed = true;
}

static void step(world_t *w, mcpg_coord_event_t event) {
    event.now.us = w->now;
    script_step(w, &event);
}

void script_say(world_t *w, uint32_t rank, const mcpg_up_msg_t *msg) {
    if (w->actors[rank].conn == 0) return;
    step(w, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_MSG, .conn = w->actors[rank].conn, .msg = msg});
}

static void say_ack(world_t *w, uint32_t rank, bool commit, mcpg_gid_t gid, mcpg_view_id_t view) {
    mcpg_up_msg_t msg = {.kind = commit ? MCPG_UP_COMMIT_ACK : MCPG_UP_ACK};
    if (commit)
        msg.u.commit_ack = (mcpg_up_commit_ack_t){.gid = gid, .view = view};
    else
        msg.u.ack = (mcpg_up_ack_t){.gid = gid,
                                    .view = view,
                                    .next_seq = w->actors[rank].seq[SCRIPT_GROUP(gid)],
                                    .steps = w->actors[rank].seq[SCRIPT_GROUP(gid)] >> MCPG_STEP_SHIFT != 0};
    fprintf(w->out, "  rank %u %s g%u@%" PRIu64 "\n", rank, commit ? "COMMIT_ACK" : "ACK", gid.v, view.epoch);
    if (!commit) script_known(w, rank, gid)->acked = view;
    script_say(w, rank, &msg);
}

void script_drain(world_t *w) {
    while (w->queue_head != w->queue_tail) {
        uint32_t at = w->queue_head++ % QUEUE;
        if (w->actors[w->queue[at].rank].conn != 0 && !w->stopped)
            say_ack(w, w->queue[at].rank, w->queue[at].commit, w->queue[at].gid, w->queue[at].view);
    }
}

/* ---- words ---- */

char *script_word(char **at) {
    char *p = *at;
    while (isspace((unsigned char)*p)) p++;
    char *start = p;
    while (*p != '\0' && !isspace((unsigned char)*p)) p++;
    if (*p != '\0') *p++ = '\0';
    *at = p;
    return start;
}

static uint64_t number(const char *text, const char **end) {
    char *stop;
    unsigned long long value = strtoull(text, &stop, 10);
    if (end != NULL) *end = stop;
    return value;
}

uint64_t script_duration(const char *text) {
    const char *unit;
    uint64_t value = number(text, &unit);
    if (strcmp(unit, "s") == 0) return value * 1000000u;
    return strcmp(unit, "ms") == 0 ? value * 1000u : value;
}

/* "7", or "2*2^32" for steps. */
static uint64_t sequence(const char *text) {
    const char *rest;
    uint64_t value = number(text, &rest);
    return strcmp(rest, "*2^32") == 0 ? value << MCPG_STEP_SHIFT : value;
}

mcpg_rankset_t script_ranks(const world_t *w, const char *text) {
    mcpg_rankset_t set;
    mcpg__rankset_clear(&set);
    if (strcmp(text, "all") == 0) {
        for (uint32_t r = 0; r < RANKS; r++)
            if (w->actors[r].conn != 0) mcpg__rankset_add(&set, r);
        return set;
    }
    while (isdigit((unsigned char)*text)) {
        uint64_t r = number(text, &text);
        if (r < MCPG_MAX_RANKS) mcpg__rankset_add(&set, (uint32_t)r);
        if (*text == ',') text++;
    }
    return set;
}

#define EACH(set, r) for (uint32_t r = mcpg__rankset_next(&(set), 0); r < RANKS; r = mcpg__rankset_next(&(set), r + 1))

static mcpg_bytes_t bytes(const char *text) {
    return (mcpg_bytes_t){(const uint8_t *)text, (uint32_t)strlen(text)};
}
static mcpg_gid_t gid_of(const char *text) {
    return (mcpg_gid_t){(uint32_t)number(text[0] == 'g' ? text + 1 : text, NULL)};
}

/* ---- commands ---- */

static void cmd_attach(world_t *w, char *args) {
    mcpg_rankset_t set = script_ranks(w, script_word(&args));
    const char *how = script_word(&args);
    EACH(set, r) {
        actor_t *a = &w->actors[r];
        if (strcmp(how, "again") != 0) {
            a->session = ++w->next_session;
            a->pid = (int64_t)++w->next_pid;
            memset(a->seq, 0, sizeof(a->seq));
            memset(a->known, 0, sizeof(a->known));
        }
        char endpoint[32];
        (void)snprintf(endpoint, sizeof(endpoint), "tcp:%u.%" PRId64, r, a->pid);
        mcpg_up_msg_t msg = {.kind = MCPG_UP_ATTACH};
        mcpg_up_attach_t *m = &msg.u.attach;
        m->version = strcmp(how, "version") == 0 ? 99 : MCPG_PROTOCOL_VERSION;
        m->rank.v = r;
        m->session.v = a->session;
        m->highest_term = strcmp(how, "again") == 0 ? a->term : 0;
        m->prev_inc = strcmp(how, "again") == 0 ? a->inc : (mcpg_incarnation_t){0, 0};
        m->host_id = 1;
        m->pid = a->pid;
        m->endpoint = bytes(endpoint);
        a->conn = ++w->next_conn;
        script_say(w, r, &msg);
    }
}

static void say_link(world_t *w, uint32_t from, uint32_t to, bool up, uint64_t check_id) {
    mcpg_up_msg_t msg = {.kind = MCPG_UP_LINK};
    msg.u.link.peer.v = to;
    msg.u.link.peer_inc = w->actors[to].inc;
    msg.u.link.state = up ? MCPG_LINK_UP : MCPG_LINK_LOST;
    msg.u.link.check_id = check_id;
    script_say(w, from, &msg);
}

/* link-up SET [SET]: every pair of the first set, or every pair across the two. */
static void cmd_link_up(world_t *w, char *args) {
    mcpg_rankset_t a = script_ranks(w, script_word(&args));
    const char *second = script_word(&args);
    mcpg_rankset_t b = *second != '\0' ? script_ranks(w, second) : a;
    EACH(a, x) EACH(b, y) {
        if (x == y || (*second == '\0' && y < x)) continue;
        mcpg__rankset_del(&w->broken[x], y);
        mcpg__rankset_del(&w->broken[y], x);
        say_link(w, x, y, true, 0);
        say_link(w, y, x, true, 0);
    }
}

/* lost A B: rank A reports its link to B lost; break A B: checks find it lost, nothing is reported. */
static void cmd_lost(world_t *w, char *args) {
    mcpg_rankset_t a = script_ranks(w, script_word(&args)), b = script_ranks(w, script_word(&args));
    EACH(a, x) EACH(b, y) if (x != y) say_link(w, x, y, false, 0);
}

static void cmd_break(world_t *w, char *args) {
    mcpg_rankset_t a = script_ranks(w, script_word(&args)), b = script_ranks(w, script_word(&args));
    EACH(a, x) EACH(b, y) {
        mcpg__rankset_add(&w->broken[x], y);
        mcpg__rankset_add(&w->broken[y], x);
    }
}

/* answer-checks [except SET]: every asked rank answers the newest check round. */
static void cmd_answer(world_t *w, char *args) {
    mcpg_rankset_t silent;
    mcpg__rankset_clear(&silent);
    if (strcmp(script_word(&args), "except") == 0) silent = script_ranks(w, script_word(&args));
    mcpg_rankset_t asked = w->asked, suspects = w->suspects;
    uint64_t check_id = w->check_id;
    mcpg__rankset_minus(&asked, &silent);
    EACH(asked, x) EACH(suspects, y) {
        if (x == y) continue;
        bool dead = w->actors[y].conn == 0;
        say_link(w, x, y, !dead && !mcpg__rankset_has(&w->broken[x], y), check_id);
    }
}

static void cmd_register(world_t *w, char *args) {
    mcpg_rankset_t who = script_ranks(w, script_word(&args));
    uint32_t order[RANKS], count = 0, capacity = 0;
    mcpg_up_register_t m = {.device_kind = bytes("cpu")};
    w->declared_label = w->declared_key = "";
    for (char *key = script_word(&args); *key != '\0'; key = script_word(&args)) {
        if (strcmp(key, "order") == 0) {
            const char *list = script_word(&args);
            while (isdigit((unsigned char)*list) && count < RANKS) {
                order[count++] = (uint32_t)number(list, &list);
                if (*list == ',') list++;
            }
        } else if (strcmp(key, "cap") == 0) {
            capacity = (uint32_t)number(script_word(&args), NULL);
        } else if (strcmp(key, "label") == 0) {
            w->declared_label = script_word(&args);
            m.label = bytes(w->declared_label);
        } else if (strcmp(key, "key") == 0) {
            w->declared_key = script_word(&args);
            m.key = bytes(w->declared_key);
        } else if (strcmp(key, "manual") == 0) {
            m.manual = true;
        } else if (strcmp(key, "ext") == 0) {
            m.is_extension = true;
        }
    }
    m.order = order;
    m.order_count = count;
    m.capacity = capacity != 0 ? capacity : count;
    EACH(who, r) {
        mcpg_up_msg_t msg = {.kind = MCPG_UP_REGISTER};
        m.call_id = ++w->next_call;
        msg.u.register_group = m;
        script_say(w, r, &msg);
    }
}

static void cmd_propose(world_t *w, char *args) {
    mcpg_rankset_t who = script_ranks(w, script_word(&args));
    mcpg_up_propose_t m = {.expected_epoch = MCPG_ANY_EPOCH};
    mcpg_member_t stamps[RANKS];
    m.gid = gid_of(script_word(&args));
    for (char *key = script_word(&args); *key != '\0'; key = script_word(&args)) {
        if (strcmp(key, "activate") == 0) m.activate = script_ranks(w, script_word(&args));
        if (strcmp(key, "deactivate") == 0) m.deactivate = script_ranks(w, script_word(&args));
        if (strcmp(key, "epoch") == 0) m.expected_epoch = number(script_word(&args), NULL);
        if (strcmp(key, "wait") == 0) m.wait_us = script_duration(script_word(&args));
        if (strcmp(key, "stamp") == 0) { /* slot/incarnation */
            const char *rest;
            mcpg_member_t *s = &stamps[m.stamp_count++ % RANKS];
            s->slot.v = (uint32_t)number(script_word(&args), &rest);
            s->inc = (mcpg_incarnation_t){1, number(rest + 1, NULL)};
        }
    }
    m.stamps = stamps;
    EACH(who, r) {
        mcpg_up_msg_t msg = {.kind = MCPG_UP_PROPOSE};
        m.call_id = ++w->next_call;
        msg.u.propose = m;
        script_say(w, r, &msg);
    }
}

static void cmd_op_failed(world_t *w, char *args) {
    mcpg_rankset_t who = script_ranks(w, script_word(&args));
    mcpg_up_op_failed_t m = {.gid = gid_of(script_word(&args)), .report_id = 1};
    mcpg_member_t failed[RANKS];
    for (char *key = script_word(&args); *key != '\0'; key = script_word(&args)) {
        if (strcmp(key, "seq") == 0) m.seq = sequence(script_word(&args));
        if (strcmp(key, "report") == 0) m.report_id = number(script_word(&args), NULL);
        if (strcmp(key, "failed") != 0) continue;
        mcpg_rankset_t set = script_ranks(w, script_word(&args)); /* slot = rank in these scripts */
        EACH(set, s) failed[m.failed_count++] = (mcpg_member_t){.slot = {s}, .rank = {s}, .inc = w->actors[s].inc};
    }
    m.failed = failed;
    mcpg_up_msg_t msg = {.kind = MCPG_UP_OP_FAILED};
    msg.u.op_failed = m;
    EACH(who, r) script_say(w, r, &msg);
}

static void cmd_sync(world_t *w, char *args) {
    mcpg_rankset_t who = script_ranks(w, script_word(&args));
    mcpg_up_sync_enter_t m = {.gid = gid_of(script_word(&args)), .first_failed_seq = MCPG_NO_SEQ};
    for (char *key = script_word(&args); *key != '\0'; key = script_word(&args)) {
        if (strcmp(key, "failed") == 0) m.failed = script_ranks(w, script_word(&args));
        if (strcmp(key, "first") == 0) m.first_failed_seq = sequence(script_word(&args));
        if (strcmp(key, "call") == 0) m.call_id = number(script_word(&args), NULL); /* the same call again */
    }
    bool again = m.call_id != 0;
    EACH(who, r) {
        mcpg_up_msg_t msg = {.kind = MCPG_UP_SYNC_ENTER};
        if (!again) m.call_id = ++w->next_call;
        msg.u.sync_enter = m;
        script_say(w, r, &msg);
    }
}

static void cmd_join(world_t *w, char *args) {
    mcpg_rankset_t who = script_ranks(w, script_word(&args));
    mcpg_gid_t gid = gid_of(script_word(&args));
    EACH(who, r) {
        mcpg_up_msg_t msg = {.kind = MCPG_UP_JOIN};
        msg.u.join = (mcpg_up_join_t){.call_id = ++w->next_call, .gid = gid};
        script_say(w, r, &msg);
    }
}

static void cmd_leave(world_t *w, char *args) {
    mcpg_rankset_t who = script_ranks(w, script_word(&args));
    mcpg_up_msg_t msg = {.kind = MCPG_UP_LEAVE_GROUP};
    msg.u.leave_group.gid = gid_of(script_word(&args));
    const char *next = script_word(&args);
    if (*next != '\0') msg.u.leave_group.next_seq = sequence(next);
    EACH(who, r) script_known(w, r, msg.u.leave_group.gid)->in = false;
    EACH(who, r) script_say(w, r, &msg);
}

static void cmd_detach(world_t *w, char *args) {
    mcpg_rankset_t who = script_ranks(w, script_word(&args));
    mcpg_up_msg_t msg = {.kind = MCPG_UP_DETACH};
    EACH(who, r) script_say(w, r, &msg);
}

static void cmd_ack(world_t *w, char *args, bool commit) {
    mcpg_rankset_t who = script_ranks(w, script_word(&args));
    mcpg_gid_t gid = gid_of(script_word(&args));
    EACH(who, r) {
        mcpg_view_id_t *view =
            commit ? &w->actors[r].committed[SCRIPT_GROUP(gid)] : &w->actors[r].prepared[SCRIPT_GROUP(gid)];
        if (view->epoch == 0) continue;
        mcpg_view_id_t id = *view;
        *view = (mcpg_view_id_t){0, 0};
        say_ack(w, r, commit, gid, id);
    }
}

static void cmd_close(world_t *w, char *args) {
    mcpg_rankset_t who = script_ranks(w, script_word(&args));
    EACH(who, r) {
        uint64_t conn = w->actors[r].conn;
        w->actors[r].conn = 0;
        if (conn != 0) step(w, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_CLOSED, .conn = conn});
    }
}

/* exit R: the launcher saw its present process end. exit R pid P: that one. */
static void cmd_exit(world_t *w, char *args) {
    mcpg_rankset_t who = script_ranks(w, script_word(&args));
    bool other = strcmp(script_word(&args), "pid") == 0;
    int64_t pid = other ? (int64_t)number(script_word(&args), NULL) : 0;
    EACH(who, r) {
        if (!other) w->actors[r].conn = 0;
        step(w, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_EXIT, .rank = {r}, .pid = other ? pid : w->actors[r].pid});
    }
}

/* death A B: rank A saw the process of rank B end. */
static void cmd_death(world_t *w, char *args) {
    mcpg_rankset_t who = script_ranks(w, script_word(&args)), whom = script_ranks(w, script_word(&args));
    EACH(who, r) EACH(whom, d) {
        mcpg_up_msg_t msg = {.kind = MCPG_UP_DEATH};
        msg.u.death.rank.v = d;
        msg.u.death.inc = w->actors[d].inc;
        script_say(w, r, &msg);
    }
}

static void cmd_seq(world_t *w, char *args) {
    mcpg_rankset_t who = script_ranks(w, script_word(&args));
    mcpg_gid_t gid = gid_of(script_word(&args));
    uint64_t seq = sequence(script_word(&args));
    EACH(who, r) w->actors[r].seq[SCRIPT_GROUP(gid)] = seq;
}

static void heartbeats(world_t *w) {
    for (uint32_t r = 0; r < RANKS && !w->stopped; r++) {
        if (w->actors[r].conn == 0 || w->actors[r].mute) continue;
        mcpg_up_msg_t msg = {.kind = MCPG_UP_HEARTBEAT};
        script_say(w, r, &msg);
    }
}

static void cmd_advance(world_t *w, char *args) {
    uint64_t until = w->now + script_duration(script_word(&args));
    while (!w->stopped) {
        uint64_t beat = w->now - w->now % 500000u + 500000u;
        uint64_t next = until < beat ? until : beat;
        if (w->timer < next) next = w->timer > w->now ? w->timer : w->now;
        w->now = next;
        if (w->timer <= w->now) step(w, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_TIMER});
        if (w->now == beat && !w->stopped) heartbeats(w);
        script_drain(w);
        if (w->now >= until && w->timer > w->now) return;
    }
}

static void cmd_switches(world_t *w, const char *name, char *args) {
    const char *value = script_word(&args);
    bool on = strcmp(value, "on") == 0;
    if (strcmp(name, "auto") == 0) w->automatic = on;
    if (strcmp(name, "timers") == 0) w->show_timer = on;
    if (strcmp(name, "mute") == 0 || strcmp(name, "unmute") == 0) {
        mcpg_rankset_t set = script_ranks(w, value);
        EACH(set, r) w->actors[r].mute = name[0] == 'm';
    }
}

bool script_run_command(world_t *w, const char *name, char *args) {
    typedef void (*command_t)(world_t *, char *);
    static const struct {
        const char *name;
        command_t run;
    } table[] = {{"attach", cmd_attach},
                 {"link-up", cmd_link_up},
                 {"lost", cmd_lost},
                 {"break", cmd_break},
                 {"answer-checks", cmd_answer},
                 {"register", cmd_register},
                 {"propose", cmd_propose},
                 {"op-failed", cmd_op_failed},
                 {"sync", cmd_sync},
                 {"join", cmd_join},
                 {"leave", cmd_leave},
                 {"detach", cmd_detach},
                 {"close", cmd_close},
                 {"exit", cmd_exit},
                 {"death", cmd_death},
                 {"seq", cmd_seq},
                 {"report", script_cmd_report},
                 {"coordinator", script_cmd_coordinator},
                 {"advance", cmd_advance}};
    for (uint32_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (strcmp(table[i].name, name) == 0) {
            table[i].run(w, args);
            return true;
        }
    bool ack = strcmp(name, "ack") == 0, commit_ack = strcmp(name, "commit-ack") == 0;
    if (ack || commit_ack) {
        cmd_ack(w, args, commit_ack);
        return true;
    }
    if (strcmp(name, "shutdown") == 0) {
        step(w, (mcpg_coord_event_t){.kind = MCPG_COORD_EV_SHUTDOWN});
        return true;
    }
    bool is_switch = strcmp(name, "auto") == 0 || strcmp(name, "timers") == 0 || strcmp(name, "mute") == 0 ||
                     strcmp(name, "unmute") == 0;
    if (is_switch) cmd_switches(w, name, args);
    return is_switch || script_raw_command(w, name, args);
}
