/* coord_crowd.h: one coordinator machine and a crowd of model agents that answer at once whatever it asks: for tests
 * and measurements of large jobs.
 *
 * Every message is packed by the codec, framed as on a real stream, and counted for each rank that it goes to. An agent
 * here is no state machine: it says ACK to PREPARE, COMMIT_ACK to COMMIT and "up" to a check. It must never judge a
 * result; a step that fails, or a message that cannot be packed, ends the program.
 */
#ifndef MCPG_TEST_COORD_CROWD_H
#define MCPG_TEST_COORD_CROWD_H

#include "common/codec.h"
#include "common/frames.h"
#include "coordinator/coord.h"

typedef struct {
    uint64_t steps, step_ns;  /* of the machine: thread CPU time */
    uint64_t packs, pack_ns;  /* of the codec, once per effect */
    uint64_t messages, bytes; /* sent, once per receiver */
    uint64_t up_messages, up_bytes;
    uint64_t largest; /* message, bytes */
    uint64_t kind_bytes[MCPG_DOWN__COUNT], kind_messages[MCPG_DOWN__COUNT];
} crowd_count_t;

typedef struct {
    uint32_t rank;
    mcpg_up_msg_t msg; /* without pointers */
} crowd_answer_t;

typedef struct {
    mcpg_coord_config_t config;
    mcpg_coord_t *coord;
    void *mem;
    size_t mem_size;
    mcpg_coord_effects_t fx;
    uint64_t now_us, timer_us;
    uint32_t ranks; /* of the job; a process in rank r has connection conns[r] */
    uint64_t *conns, last_conn, last_session;
    mcpg_incarnation_t *incs;
    uint64_t *digests; /* that the coordinator last told the rank */
    bool *alive;
    int64_t *pids;
    uint32_t endpoint_len;
    uint8_t *packed;
    mcpg_frames_tx_t *frames;
    crowd_answer_t *queue; /* what the agents have still to say */
    size_t queue_head, queue_tail, queue_cap;
    uint32_t last_gid;
    int32_t last_reply; /* status of the newest REPLY or REGISTERED */
    uint64_t replies;
    uint64_t next_seq; /* in every ACK */
    bool light;        /* measures and counts nothing, packs only what the real rank hears: for very large jobs */
    /* A rank that is no model: it gets the frames, and answers nothing here. */
    uint32_t real_rank;
    void (*real_hears)(void *user, const uint8_t *bytes, size_t len);
    void *real_user;
    crowd_count_t count;
} crowd_t;

crowd_t *crowd_new(uint32_t ranks, uint32_t endpoint_len);
void crowd_free(crowd_t *w);
uint64_t crowd_cpu_ns(void);
/* One event, its effects, and every TIMER step that is due at the same time. */
void crowd_step(crowd_t *w, mcpg_coord_event_t event);
void crowd_say(crowd_t *w, uint32_t rank, const mcpg_up_msg_t *msg);
/* All agents say what they have to say, until nothing is asked any more. */
void crowd_settle(crowd_t *w);
/* A new process in the rank. */
void crowd_attach(crowd_t *w, uint32_t rank);
/* One end says that its link is up; both do. */
void crowd_link_half(crowd_t *w, uint32_t rank, uint32_t peer);
void crowd_link(crowd_t *w, uint32_t a, uint32_t b);
/* Every rank attaches, every link comes up. */
void crowd_gather(crowd_t *w);
/* Does not settle: with founders, the group forms when all have registered. */
void crowd_register(crowd_t *w, uint32_t rank, uint32_t group_ranks, bool extension, bool manual);
void crowd_join(crowd_t *w, uint32_t rank, uint32_t gid);
void crowd_propose(crowd_t *w, uint32_t rank, uint32_t gid, const mcpg_rankset_t *activate,
                   const mcpg_rankset_t *deactivate);
/* The launcher saw the rank's process end. */
void crowd_exit(crowd_t *w, uint32_t rank);
/* Says the digest that the coordinator told it last, so that nothing is sent again. */
void crowd_heartbeat(crowd_t *w, uint32_t rank);
/* Active slots of the committed view; 0: none. */
uint32_t crowd_active(const crowd_t *w, uint32_t gid);
void crowd_count_reset(crowd_t *w);

#endif
