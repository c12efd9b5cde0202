/* sim_net.c: the streams between agents and coordinators: ordered, breakable at any time, with what was under way lost.
 *
 * Nothing is duplicated or reordered inside one stream; between streams and between processes every order happens: an
 * old stream's messages arrive after a newer one has opened, and a stream whose path is cut delivers when it heals, or
 * never. It must never look into a message.
 */
#include <stdlib.h>
#include <string.h>

#include "sim/sim.h"

sim_buf_t *sim_buf_new(const uint8_t *bytes, size_t len) {
    sim_buf_t *buf = malloc(sizeof(*buf) + len);
    if (buf == NULL) abort();
    buf->refs = 1;
    buf->len = (uint32_t)len;
    if (len > 0) memcpy(buf->bytes, bytes, len);
    return buf;
}

void sim_buf_drop(sim_buf_t *buf) {
    if (buf != NULL && --buf->refs == 0) free(buf);
}

uint64_t sim_delay(sim_t *w, uint32_t from, uint32_t to) {
    uint64_t delay =
        w->plan.latency_us + sim_below(&w->net, w->plan.jitter_us + 1u) + w->clog_us[from] + w->clog_us[to];
    if (w->plan.spike_permille > 0 && sim_chance(&w->net, w->plan.spike_permille))
        delay += sim_scaled(&w->net, 5000, 900000);
    return delay;
}

static uint32_t node_site(const sim_t *w, const sim_stream_t *s) {
    return w->nodes[s->node]->rank;
}

static void schedule(sim_t *w, uint32_t stream, sim_fifo_t *fifo, bool up) {
    if (fifo->scheduled || fifo->head == NULL) return;
    fifo->scheduled = true;
    fifo->stalled = false;
    sim_at(w, fifo->head->at, up ? SIM_EV_UP : SIM_EV_DOWN, stream, 0, 0);
}

static void push(sim_t *w, uint32_t stream, bool up, sim_item_kind_t kind, sim_buf_t *buf) {
    sim_stream_t *s = w->streams[stream];
    sim_fifo_t *fifo = up ? &s->up : &s->down;
    uint32_t here = node_site(w, s), there = w->coords[s->coord]->site;
    uint64_t delay = kind == SIM_ITEM_GONE_HERE ? 1 : up ? sim_delay(w, here, there) : sim_delay(w, there, here);
    sim_item_t *item = malloc(sizeof(*item));
    if (item == NULL) abort();
    *item = (sim_item_t){.kind = (uint8_t)kind, .buf = buf, .at = w->now + delay};
    if (item->at <= fifo->last_at) item->at = fifo->last_at + 1u;
    fifo->last_at = item->at;
    if (fifo->tail != NULL)
        fifo->tail->next = item;
    else
        fifo->head = item;
    fifo->tail = item;
    if (!fifo->stalled) schedule(w, stream, fifo, up);
}

static void pop(sim_fifo_t *fifo) {
    sim_item_t *item = fifo->head;
    fifo->head = item->next;
    if (fifo->head == NULL) fifo->tail = NULL;
    sim_buf_drop(item->buf);
    free(item);
}

/* Drops what is under way but for the first `keep` items. A pending event then finds less, or nothing. */
static void truncate_to(sim_fifo_t *fifo, uint64_t keep) {
    sim_item_t **link = &fifo->head, *last = NULL;
    for (; keep > 0 && *link != NULL; keep--) {
        last = *link;
        link = &(*link)->next;
    }
    while (*link != NULL) {
        sim_item_t *item = *link;
        *link = item->next;
        sim_buf_drop(item->buf);
        free(item);
    }
    fifo->tail = last;
    fifo->last_at = last == NULL ? 0 : last->at;
    if (last == NULL) fifo->stalled = false;
}

static uint64_t length(const sim_fifo_t *fifo) {
    uint64_t n = 0;
    for (const sim_item_t *i = fifo->head; i != NULL; i = i->next) n++;
    return n;
}

static void collect(sim_t *w, uint32_t stream) {
    sim_stream_t *s = w->streams[stream];
    bool node_over = !w->nodes[s->node]->alive || w->nodes[s->node]->stream != stream;
    if (node_over) truncate_to(&s->down, 0);
    if (s->up_over) truncate_to(&s->up, 0);
    if (!node_over || !s->up_over || s->up.scheduled || s->down.scheduled) return;
    free(s);
    w->streams[stream] = NULL;
}

/* ---- opening and closing ---- */

uint32_t sim_stream_open(sim_t *w, sim_node_t *node) {
    sim_grow((void **)&w->streams, &w->stream_cap, w->stream_count + 1u, sizeof(*w->streams));
    uint32_t stream = ++w->stream_count; /* 0 is no connection */
    sim_stream_t *s = sim_zalloc(sizeof(*s));
    w->streams[stream] = s;
    s->node = node->index;
    if (!sim_store_down(w)) node->address = w->address; /* else the one that it knows */
    s->coord = node->address;
    node->stream = stream;
    mcpg__frames_rx_reset(node->frames);
    bool there = w->coords[s->coord]->alive && !w->coords[s->coord]->stopped;
    s->up_over = !there;
    push(w, stream, false, there ? SIM_ITEM_CONNECTED : SIM_ITEM_GONE, NULL);
    return stream;
}

void sim_stream_up(sim_t *w, uint32_t stream, sim_buf_t *buf) {
    sim_stream_t *s = w->streams[stream];
    if (s->up_over || s->closing) {
        sim_buf_drop(buf);
        return;
    }
    push(w, stream, true, SIM_ITEM_MSG, buf);
}

void sim_stream_down(sim_t *w, uint32_t stream, sim_buf_t *buf) {
    sim_stream_t *s = w->streams[stream];
    if (s == NULL || s->closing || !w->nodes[s->node]->alive || w->nodes[s->node]->stream != stream) {
        sim_buf_drop(buf);
        return;
    }
    push(w, stream, false, SIM_ITEM_MSG, buf);
}

/* What was sent before still arrives, then the end of the stream. */
void sim_stream_node_closes(sim_t *w, uint32_t stream) {
    sim_stream_t *s = w->streams[stream];
    truncate_to(&s->down, 0);
    push(w, stream, false, SIM_ITEM_GONE_HERE, NULL);
    if (!s->up_over && !s->closing) push(w, stream, true, SIM_ITEM_GONE, NULL);
}

void sim_stream_coord_closes(sim_t *w, uint32_t stream) {
    sim_stream_t *s = stream <= w->stream_count ? w->streams[stream] : NULL;
    if (s == NULL || s->closing || s->up_over) return;
    s->closing = true;
    truncate_to(&s->up, 0);
    push(w, stream, true, SIM_ITEM_GONE_HERE, NULL);
    if (w->nodes[s->node]->alive && w->nodes[s->node]->stream == stream) push(w, stream, false, SIM_ITEM_GONE, NULL);
}

static void delay_all(sim_fifo_t *fifo, uint64_t by_us) {
    for (sim_item_t *i = fifo->head; i != NULL; i = i->next) i->at += by_us;
    if (fifo->tail != NULL) fifo->last_at = fifo->tail->at;
}

/* Broken by the network. late_us: what was under way to the coordinator arrives, but so much later, and so does its
 * end: by then the process has opened another one. */
void sim_stream_break(sim_t *w, uint32_t stream, uint64_t late_us) {
    sim_stream_t *s = w->streams[stream];
    if (s == NULL) return;
    truncate_to(&s->down, sim_below(&w->net, length(&s->down) + 1u));
    if (w->nodes[s->node]->alive && w->nodes[s->node]->stream == stream) push(w, stream, false, SIM_ITEM_GONE, NULL);
    if (s->up_over || s->closing) return;
    if (late_us == 0) truncate_to(&s->up, sim_below(&w->net, length(&s->up) + 1u));
    push(w, stream, true, SIM_ITEM_GONE, NULL);
    if (late_us > 0) delay_all(&s->up, late_us);
}

void sim_stream_node_died(sim_t *w, uint32_t stream) {
    sim_stream_t *s = w->streams[stream];
    truncate_to(&s->down, 0);
    if (!s->up_over && !s->closing) {
        truncate_to(&s->up, sim_below(&w->net, length(&s->up) + 1u));
        push(w, stream, true, SIM_ITEM_GONE, NULL);
    }
    collect(w, stream);
}

void sim_stream_coord_died(sim_t *w, uint32_t coord) {
    for (uint32_t i = 1; i <= w->stream_count; i++) {
        sim_stream_t *s = w->streams[i];
        if (s == NULL || s->coord != coord) continue;
        bool was_closing = s->closing;
        s->up_over = true;
        truncate_to(&s->up, 0);
        if (w->nodes[s->node]->alive && w->nodes[s->node]->stream == i && !was_closing) {
            truncate_to(&s->down, sim_below(&w->net, length(&s->down) + 1u));
            push(w, i, false, SIM_ITEM_GONE, NULL);
        }
        collect(w, i);
    }
}

/* ---- delivery ---- */

static void deliver_up(sim_t *w, uint32_t stream, sim_stream_t *s, const sim_item_t *item) {
    sim_coord_t *c = w->coords[s->coord];
    if (item->kind == SIM_ITEM_MSG) {
        if (!s->closing) sim_coord_msg(w, c, stream, item->buf->bytes, item->buf->len);
        return;
    }
    s->up_over = true;
    sim_coord_closed(w, c, stream);
}

/* Pushes that a digest heals may be lost singly. */
static bool is_lost(sim_t *w, const mcpg_down_msg_t *msg) {
    bool healed = msg->kind == MCPG_DOWN_RANK_STATES || msg->kind == MCPG_DOWN_MEMBERS || msg->kind == MCPG_DOWN_COMMIT;
    if (!healed || w->plan.lose_permille == 0 || w->healing || !sim_chance(&w->net, w->plan.lose_permille))
        return false;
    w->result->faults[SIM_F_PUSH_LOSS]++;
    return true;
}

static void deliver_down(sim_t *w, sim_stream_t *s, const sim_item_t *item) {
    sim_node_t *node = w->nodes[s->node];
    mcpg_agent_event_t e;
    memset(&e, 0, sizeof(e));
    if (item->kind == SIM_ITEM_MSG) {
        mcpg_down_msg_t msg;
        mcpg_arena_t arena = {.base = w->arena, .cap = w->arena_cap};
        mcpg_bytes_t whole;
        if (mcpg__frames_rx_take(node->frames, item->buf->bytes, item->buf->len, &whole) != MCPG_OK ||
            mcpg__down_unpack(whole.ptr, whole.len, &arena, &msg) != MCPG_OK) {
            sim_fail(w, "codec", "a message of the coordinator cannot be read");
            return;
        }
        if (is_lost(w, &msg)) return;
        e.kind = MCPG_AGENT_EV_MSG;
        e.u.msg = &msg;
        sim_agent_step(w, node, &e, whole.ptr, whole.len);
        return;
    }
    e.kind = item->kind == SIM_ITEM_CONNECTED ? MCPG_AGENT_EV_CONNECTED : MCPG_AGENT_EV_DISCONNECTED;
    if (item->kind != SIM_ITEM_CONNECTED) node->stream = SIM_NO;
    sim_agent_step(w, node, &e, NULL, 0);
}

/* An executor that is stopped, or slow, takes it later. */
static bool postpone(sim_t *w, uint32_t stream, bool up, uint64_t paused_until, uint64_t busy_until) {
    uint64_t until = paused_until > busy_until ? paused_until : busy_until;
    if (until <= w->now) return false;
    sim_at(w, until, up ? SIM_EV_UP : SIM_EV_DOWN, stream, 0, 0);
    return true;
}

void sim_stream_event(sim_t *w, uint32_t stream, bool up) {
    sim_stream_t *s = w->streams[stream];
    if (s == NULL) return;
    sim_fifo_t *fifo = up ? &s->up : &s->down;
    fifo->scheduled = false;
    sim_node_t *node = w->nodes[s->node];
    sim_coord_t *c = w->coords[s->coord];
    bool heard = up ? c->alive && !c->stopped && !s->up_over : node->alive && node->stream == stream;
    if (!heard || fifo->head == NULL) {
        if (up && !heard) s->up_over = true;
        collect(w, stream);
        return;
    }
    if (fifo->head->at > w->now) { /* what this event was for is gone, or later */
        schedule(w, stream, fifo, up);
        return;
    }
    bool here = fifo->head->kind == SIM_ITEM_GONE_HERE;
    bool open = up ? sim_reaches(w, node->rank, c->site) : sim_reaches(w, c->site, node->rank);
    bool both = fifo->head->kind != SIM_ITEM_CONNECTED || sim_reaches(w, node->rank, c->site);
    if (!here && !(open && both)) {
        fifo->stalled = true;
        return;
    }
    bool later = up ? postpone(w, stream, up, c->paused_until_us, c->busy_until_us)
                    : postpone(w, stream, up, node->paused_until_us, node->busy_until_us);
    if (later) {
        fifo->scheduled = true;
        return;
    }
    sim_item_t item = *fifo->head;
    if (item.buf != NULL) item.buf->refs++;
    pop(fifo);
    schedule(w, stream, fifo, up);
    if (item.kind == SIM_ITEM_CONNECTED && (!c->alive || c->stopped)) item.kind = SIM_ITEM_GONE;
    if (up)
        deliver_up(w, stream, s, &item);
    else
        deliver_down(w, s, &item);
    sim_buf_drop(item.buf);
    if (w->streams[stream] != NULL) collect(w, stream);
}

void sim_path_healed(sim_t *w) {
    for (uint32_t i = 1; i <= w->stream_count; i++) {
        sim_stream_t *s = w->streams[i];
        if (s == NULL) continue;
        if (s->up.stalled) schedule(w, i, &s->up, true);
        if (s->down.stalled) schedule(w, i, &s->down, false);
    }
}

void sim_streams_free(sim_t *w) {
    for (uint32_t i = 1; i <= w->stream_count; i++) {
        if (w->streams[i] == NULL) continue;
        truncate_to(&w->streams[i]->up, 0);
        truncate_to(&w->streams[i]->down, 0);
        free(w->streams[i]);
    }
    free(w->streams);
}
