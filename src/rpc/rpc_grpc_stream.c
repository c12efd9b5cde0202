/* rpc_grpc_stream.c: the completion-queue thread and the message stream that gRPC server and client share.
 *
 * Holds the rules of a stream: one send and one receive in flight, a bounded queue behind the send, no receive while
 * the owner has not taken the last message, an orderly close with a deadline. Never decides what a stream means.
 */
#include <grpc/byte_buffer_reader.h>
#include <grpc/support/log.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "common/codec.h"
#include "common/executor.h"
#include "common/log.h"
#include "rpc/rpc_grpc_impl.h"

/* ---- library ---- */

static mcpg_log_t grpc_log;
const mcpg_log_t *mcpg__grpc_log(void) {
    return &grpc_log;
}

/* gRPC would write to stderr of somebody's training job; its errors are of interest only with MOONCAKE_LOG=debug. */
static void route_log(gpr_log_func_args *args) {
    if (args->severity != GPR_LOG_SEVERITY_ERROR) return;
    mcpg__log(&grpc_log, MCPG_LOG_DEBUG, "grpc_error %s (%s:%d)", args->message, args->file, args->line);
}
/* gRPC's threads and ours must not take the application's signals; synchronous ones stay deliverable. */
static void block_signals(sigset_t *old) {
    static const int keep[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP};
    sigset_t all;
    (void)sigfillset(&all);
    for (size_t i = 0; i < sizeof keep / sizeof keep[0]; i++) (void)sigdelset(&all, keep[i]);
    (void)pthread_sigmask(SIG_SETMASK, &all, old);
}

/* One reference stays for the life of the process: gRPC's last shutdown would wait up to 10 s for the poller of a write
 * that once blocked, and a stop must not. Every other one is balanced. */
static void begin_once(void) {
    mcpg__log_init(&grpc_log, NULL, NULL, "grpc");
    gpr_set_log_function(route_log);
    grpc_init();
}

void mcpg__grpc_begin(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    sigset_t old;
    block_signals(&old);
    (void)pthread_once(&once, begin_once);
    grpc_init();
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
}
void mcpg__grpc_end(void) {
    grpc_shutdown();
}

/* ---- pump ---- */

static void tick(mcpg_gpump_t *p, uint64_t now_us);

static void schedule(mcpg_gpump_t *p, uint64_t now_us) {
    uint64_t wait_us = UINT64_MAX;
    if (p->closing_count > 0 || p->is_ending) wait_us = MCPG_RPC_FLUSH_US / 50u;
    if (p->stalled_count > 0) wait_us = MCPG_RPC_REOFFER_US;
    if (wait_us == UINT64_MAX) {
        p->next_tick_us = UINT64_MAX;
    } else if (p->next_tick_us > now_us + wait_us || p->next_tick_us <= now_us) {
        p->next_tick_us = now_us + wait_us;
    }
}

static gpr_timespec wait_until(uint64_t at_us) {
    if (at_us == UINT64_MAX) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
    uint64_t now_us = mcpg__now().us;
    int64_t left_us = at_us > now_us ? (int64_t)(at_us - now_us) : 0;
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_micros(left_us, GPR_TIMESPAN));
}

static void *pump_main(void *arg) {
    mcpg_gpump_t *p = (mcpg_gpump_t *)arg;
    uint64_t tick_us = UINT64_MAX;
    for (;;) {
        grpc_event event = grpc_completion_queue_next(p->cq, wait_until(tick_us), NULL);
        if (event.type == GRPC_QUEUE_SHUTDOWN) return NULL;
        (void)pthread_mutex_lock(&p->lock);
        if (event.type == GRPC_OP_COMPLETE) {
            mcpg_gop_t *op = (mcpg_gop_t *)event.tag;
            op->done(op, event.success != 0);
        }
        uint64_t now_us = mcpg__now().us;
        if (now_us >= p->next_tick_us) tick(p, now_us);
        p->turn(p);
        schedule(p, now_us);
        tick_us = p->next_tick_us;
        (void)pthread_mutex_unlock(&p->lock);
    }
}

mcpg_status_t mcpg__gpump_init(mcpg_gpump_t *p, void (*turn)(mcpg_gpump_t *)) {
    if (pthread_mutex_init(&p->lock, NULL) != 0) return MCPG_NO_MEMORY;
    p->cq = grpc_completion_queue_create_for_next(NULL);
    p->next_tick_us = UINT64_MAX;
    p->turn = turn;
    return MCPG_OK;
}

mcpg_status_t mcpg__gpump_start(mcpg_gpump_t *p, const char *thread_name) {
    sigset_t old;
    block_signals(&old);
    int rc = pthread_create(&p->thread, NULL, pump_main, p);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0) return MCPG_SYSTEM;
    (void)pthread_setname_np(p->thread, thread_name);
    return MCPG_OK;
}

void mcpg__gpump_shutdown_cq(mcpg_gpump_t *p) {
    if (p->cq_down) return;
    p->cq_down = true;
    grpc_completion_queue_shutdown(p->cq);
}
void mcpg__gpump_join(mcpg_gpump_t *p) {
    (void)pthread_join(p->thread, NULL);
}
void mcpg__gpump_fini(mcpg_gpump_t *p) {
    grpc_completion_queue_destroy(p->cq);
    (void)pthread_mutex_destroy(&p->lock);
}

/* ---- stream: sending ---- */

void mcpg__gstream_batch(mcpg_gstream_t *s, mcpg_gop_t *op, const grpc_op *ops, size_t count) {
    s->pending++;
    grpc_call_error rc = grpc_call_start_batch(s->call, ops, count, op, NULL);
    MCPG_ASSERT(rc == GRPC_CALL_OK);
}

static void drop_head(mcpg_gstream_t *s) {
    mcpg_gout_t *o = s->out_head;
    s->out_head = o->next;
    if (s->out_head == NULL) s->out_tail = NULL;
    s->out_count--;
    s->out_bytes -= o->len;
    grpc_byte_buffer_destroy(o->bytes);
    free(o);
}

static void drop_out(mcpg_gstream_t *s) {
    while (s->out_head != NULL) drop_head(s);
}

/* The head of the queue stays there while gRPC has it. */
static void send_next(mcpg_gstream_t *s) {
    if (s->send_busy || s->aborted || s->life_done) return;
    if (s->send_failed) drop_out(s);
    if (s->out_head != NULL) {
        grpc_op op;
        memset(&op, 0, sizeof op);
        op.op = GRPC_OP_SEND_MESSAGE;
        op.data.send_message.send_message = s->out_head->bytes;
        s->send_busy = true;
        mcpg__gstream_batch(s, &s->send_op, &op, 1);
    } else if (s->closing && !s->end_started) {
        s->end_started = true;
        s->side->end(s);
    }
}

static void send_done(mcpg_gop_t *op, bool ok) {
    mcpg_gstream_t *s = (mcpg_gstream_t *)op->who;
    s->send_busy = false;
    drop_head(s);
    if (!ok) s->send_failed = true; /* no abort: what the peer sent before it closed is still to be read */
    send_next(s);
    mcpg__gstream_op_done(s);
}

mcpg_status_t mcpg__gstream_send(mcpg_gstream_t *s, const uint8_t *buf, size_t len) {
    if (len > MCPG_MSG_CAP) return MCPG_LIMIT;
    if (s->closing || s->aborted || s->life_done || s->send_failed) return MCPG_NOT_FOUND;
    if (s->out_count >= MCPG_RPC_OUT_COUNT || s->out_bytes + len > MCPG_RPC_OUT_BYTES) {
        mcpg__gstream_abort(s, MCPG_BUSY);
        return MCPG_BUSY;
    }
    mcpg_gout_t *o = (mcpg_gout_t *)calloc(1, sizeof *o);
    if (o == NULL) return MCPG_NO_MEMORY;
    grpc_slice slice = grpc_slice_from_copied_buffer((const char *)buf, len);
    o->bytes = grpc_raw_byte_buffer_create(&slice, 1);
    o->len = len;
    grpc_slice_unref(slice);
    if (s->out_tail != NULL)
        s->out_tail->next = o;
    else
        s->out_head = o;
    s->out_tail = o;
    s->out_count++;
    s->out_bytes += len;
    send_next(s);
    return MCPG_OK;
}

/* ---- stream: receiving ---- */

static void receive_next(mcpg_gstream_t *s) {
    if (!s->read_on || s->recv_busy || s->have_in || s->read_ended) return;
    grpc_op op;
    memset(&op, 0, sizeof op);
    op.op = GRPC_OP_RECV_MESSAGE;
    op.data.recv_message.recv_message = &s->received;
    s->recv_busy = true;
    mcpg__gstream_batch(s, &s->recv_op, &op, 1);
}

static void set_stalled(mcpg_gstream_t *s, bool stalled) {
    if (s->stalled == stalled) return;
    s->stalled = stalled;
    if (stalled)
        s->pump->stalled_count++;
    else
        s->pump->stalled_count--;
}

static void drop_in(mcpg_gstream_t *s) {
    grpc_slice_unref(s->in);
    s->have_in = false;
    set_stalled(s, false);
}

/* Lock held, dropped for the owner's callback: only this thread frees streams, so s stays. */
static void offer(mcpg_gstream_t *s) {
    bool taken = true;
    if (!s->discard_in) {
        (void)pthread_mutex_unlock(&s->pump->lock);
        taken = s->side->deliver(s, GRPC_SLICE_START_PTR(s->in), GRPC_SLICE_LENGTH(s->in));
        (void)pthread_mutex_lock(&s->pump->lock);
    }
    if (taken || s->discard_in) {
        drop_in(s);
        receive_next(s);
    } else {
        set_stalled(s, true);
    }
}

static void recv_done(mcpg_gop_t *op, bool ok) {
    mcpg_gstream_t *s = (mcpg_gstream_t *)op->who;
    grpc_byte_buffer *bytes = s->received;
    s->received = NULL;
    s->recv_busy = false;
    grpc_byte_buffer_reader reader;
    if (ok && bytes != NULL && grpc_byte_buffer_reader_init(&reader, bytes)) {
        s->in = grpc_byte_buffer_reader_readall(&reader);
        grpc_byte_buffer_reader_destroy(&reader);
        s->have_in = true;
    } else {
        s->read_ended = true;
    }
    if (bytes != NULL) grpc_byte_buffer_destroy(bytes);
    if (s->have_in)
        offer(s);
    else
        s->side->read_ended(s);
    mcpg__gstream_op_done(s);
}

void mcpg__gstream_read(mcpg_gstream_t *s) {
    s->read_on = true;
    receive_next(s);
}

/* ---- stream: its end ---- */

static void wake_done(mcpg_gop_t *op, bool ok) {
    (void)ok;
    mcpg_gstream_t *s = (mcpg_gstream_t *)op->who;
    s->waking = false;
    mcpg__gstream_op_done(s);
}

/* An empty batch completes at once: makes the pump's thread look at deadlines that it does not know of. */
static void wake(mcpg_gstream_t *s) {
    if (s->waking) return;
    s->waking = true;
    mcpg__gstream_batch(s, &s->wake_op, NULL, 0);
}

/* From here on nothing goes to the owner: what waits there is dropped, what comes is read and dropped so that the end
 * is reached. */
static void stop_delivery(mcpg_gstream_t *s) {
    s->discard_in = true;
    if (s->stalled) wake(s);
}

void mcpg__gstream_close(mcpg_gstream_t *s) {
    if (s->closing || s->aborted) return;
    s->closing = true;
    s->close_deadline_us = mcpg__now().us + MCPG_RPC_FLUSH_US;
    s->pump->closing_count++;
    stop_delivery(s);
    send_next(s);
    wake(s);
}

void mcpg__gstream_abort(mcpg_gstream_t *s, mcpg_status_t why) {
    if (s->aborted) return;
    s->aborted = true;
    s->why = why;
    if (s->life_done) return;
    stop_delivery(s);
    (void)grpc_call_cancel_with_status(s->call, GRPC_STATUS_UNAVAILABLE, MCPG_RPC_BROKEN_OFF, NULL);
}

void mcpg__gstream_init(mcpg_gstream_t *s, mcpg_gpump_t *p, const mcpg_gside_t *side, grpc_call *call) {
    s->pump = p;
    s->side = side;
    s->call = call;
    s->send_op = (mcpg_gop_t){send_done, s};
    s->recv_op = (mcpg_gop_t){recv_done, s};
    s->wake_op = (mcpg_gop_t){wake_done, s};
    s->next = p->streams;
    if (p->streams != NULL) p->streams->prev = s;
    p->streams = s;
}

/* The owner is told as soon as the stream is over; a send that hangs in a frozen peer's socket may keep the memory
 * longer. */
static void finish_if_over(mcpg_gstream_t *s) {
    mcpg_gpump_t *p = s->pump;
    if (!s->told) {
        if (!s->life_done || s->start_busy || s->have_in || (s->read_on && !s->read_ended)) return;
        s->told = true;
        if (s->closing) p->closing_count--;
        s->side->over(s);
    }
    if (s->pending > 0) return;
    drop_out(s);
    if (s->prev != NULL)
        s->prev->next = s->next;
    else
        p->streams = s->next;
    if (s->next != NULL) s->next->prev = s->prev;
    s->side->release(s);
}

void mcpg__gstream_op_done(mcpg_gstream_t *s) {
    MCPG_ASSERT(s->pending > 0);
    s->pending--;
    if (s->have_in && s->discard_in) {
        drop_in(s);
        receive_next(s);
    }
    finish_if_over(s);
}

/* Re-offers what was refused, breaks what did not close in time. Callbacks drop the lock: the successor is read before.
 */
static void tick(mcpg_gpump_t *p, uint64_t now_us) {
    for (mcpg_gstream_t *s = p->streams, *next; s != NULL; s = next) {
        next = s->next;
        if (s->closing && !s->life_done && now_us >= s->close_deadline_us) mcpg__gstream_abort(s, MCPG_TIMED_OUT);
        if (!s->stalled) continue;
        offer(s);
        finish_if_over(s);
    }
}
