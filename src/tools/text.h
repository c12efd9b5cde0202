/* text.h: events, effects and messages of both machines as lines of text, the language of tests/script, and the events
 * of the coordinator back from it.
 *
 * Ranks and slots are "0,2,5" or "-"; group 3 at epoch 2 is "g3@2"; a member is slot:rank/incarnation. Incarnations and
 * views of term 1, the usual one in tests, show their counter only: "4"; others are "TERM.COUNTER". What is printed of
 * an event says everything that the machine gets; it never decides what is right.
 */
#ifndef MCPG_TOOLS_TEXT_H
#define MCPG_TOOLS_TEXT_H

#include <stdio.h>

#include "agent/agent.h"
#include "common/codec.h"
#include "coordinator/coord.h"

/* ---- parts ---- */
void mcpg__text_set(FILE *out, const mcpg_rankset_t *set);
void mcpg__text_seq(FILE *out, uint64_t seq); /* "none", "7", "2*2^32+7" */
void mcpg__text_inc(FILE *out, mcpg_incarnation_t inc);
void mcpg__text_view(FILE *out, mcpg_gid_t gid, mcpg_view_id_t id);                 /* "g3@2" */
void mcpg__text_view_body(FILE *out, mcpg_gid_t gid, const mcpg_view_body_t *view); /* "g3@2 {0:3/4 1:5/6}" */
void mcpg__text_bytes(FILE *out, mcpg_bytes_t bytes); /* in quotes; \xNN for what is not plain, spaces too */
const char *mcpg__text_rank_state(uint8_t state);

/* ---- messages, without the end of the line ---- */
void mcpg__text_down(FILE *out, const mcpg_down_msg_t *msg);
void mcpg__text_up(FILE *out, const mcpg_up_msg_t *msg); /* "ACK gid g1 view 2 next 7" */
/* Reads what mcpg__text_up printed; words is cut up. Arrays are put into arena. The message is not validated: pack and
 * unpack it. False: error says which word is wrong. */
bool mcpg__text_up_parse(char *words, mcpg_arena_t *arena, mcpg_up_msg_t *out, char *error, size_t error_cap);

/* ---- the coordinator: command lines of a script ---- */
void mcpg__text_coord_config(FILE *out, const mcpg_coord_config_t *config); /* "config term 1 id 7 ..." */
bool mcpg__text_coord_config_parse(char *words, mcpg_coord_config_t *out, char *error, size_t error_cap);
/* "c4 ACK ...", "closed c4", "exit 3 pid 77", "record g1 OK ...", "timer", "shutdown" */
void mcpg__text_coord_event(FILE *out, const mcpg_coord_event_t *event);
/* Reads a line that mcpg__text_coord_event printed, all but its time. False with an empty error: it is none of these.
 */
bool mcpg__text_coord_event_parse(char *line, mcpg_arena_t *arena, mcpg_up_msg_t *msg, mcpg_coord_event_t *out,
                                  char *error, size_t error_cap);
void mcpg__text_coord_effect(FILE *out, const mcpg_coord_effect_t *effect); /* with the end of the line */

/* ---- the agent, one line each ---- */
void mcpg__text_agent_config(FILE *out, const mcpg_agent_config_t *config);
void mcpg__text_agent_event(FILE *out, const mcpg_agent_event_t *event);
void mcpg__text_agent_effect(FILE *out, const mcpg_agent_effect_t *effect);

/* ---- words, for parsers ---- */
char *mcpg__text_word(char **at); /* cuts the next word off, "" at the end */
bool mcpg__text_number(const char *word, uint64_t *out);
bool mcpg__text_pair(const char *word, uint64_t *term_out, uint64_t *counter_out); /* "4" or "2.4" or "-" */

#endif
