/* doubt.pml: a lost coordinator, a second one, a rank that is cut off (rules 7 and 8, with what they need of 1 to 3).
 *
 * MEMBERS ranks are active in view 1, one more wants to join. Coordinator 1 rules at first; it may die, or go on ruling
 * those that still hear it while coordinator 2 gathers and takes over. Streams break and come back at any moment, DEATHS
 * ranks die, and a death is proved to whom the checker likes, or to nobody. One process takes every step, and each step
 * is one of the checker's choices. What is sent arrives at any later moment, or never; so a stream needs no state: one that
 * is broken is one on which nothing arrives, a dead coordinator is one from which nothing arrives, and what a rank may do
 * only while contact is lost it may do here at any moment. It must never contain a timer: what a timer decides may happen
 * at any moment.
 * docs/protocol.md, "Model", names the code of each step.
 *
 * A BREAK_x macro takes one rule away: check.sh wants each of these refuted, and the whole to hold.
 */
#ifndef MEMBERS
#define MEMBERS 2
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef NUMBERS
#define NUMBERS 2
#endif
#ifndef VIEWS1 /* barriers that each coordinator may open */
#define VIEWS1 2
#endif
#ifndef VIEWS2
#define VIEWS2 2
#endif
#include "doubt_breaks.pmi"
#define RANKS (MEMBERS + 1)
#define JOINER MEMBERS
#define LAST (1 + VIEWS1 + VIEWS2)

#define bit(i) (1 << (i))
#define has(set, i) (((set) >> (i)) & 1)
#define count(s) (((s) & 1) + (((s) >> 1) & 1) + (((s) >> 2) & 1) + (((s) >> 3) & 1))
/* The greater part of a view: more than half, or half with the lowest rank. */
#define greater(part, whole)                                                                                           \
    (2 * count((part) & (whole)) + (((part) & (whole) & -(whole)) != 0) > count(whole))
#ifdef CHECK_D
#define check_d(x) assert(x)
#else
#define check_d(x) skip
#endif
#define term_of(v) (1 + ((v) > 1 + VIEWS1))
#define max(a, b) ((a) > (b) -> (a) : (b))

/* views: what was prepared, what was committed (0: was not), on what it builds, from which number it holds */
byte prepared[LAST + 1], members[LAST + 1], pred[LAST + 1], from[LAST + 1];

/* ranks: bit sets, or one value for each */
byte alive = (1 << RANKS) - 1;
byte lease = (1 << RANKS) - 1; /* whose last answered heartbeat may be less than offline_us old */
byte told;        /* who has reported to coordinator 2: from then on nothing of coordinator 1 is obeyed */
byte com[RANKS];  /* newest view installed */
byte ack[RANKS];  /* open ACK: the rank holds */
byte gone[RANKS]; /* highest view that it was told is aborted */
byte next[RANKS];
byte started[RANKS * NUMBERS]; /* the view in which it began a number; 0: it has not */
byte done[NUMBERS];            /* the checker's: the view in which somebody completed it */

/* coordinators 1 and 2 */
byte ruling = bit(1);
byte kcom[3], bar[3], acks[3], used[3];
byte acked_next[3]; /* highest number ACKed by those that stay */
#if PROMISE
byte r_com[RANKS], r_ack[RANKS]; /* what coordinator 2 was told: differs from the truth only where a promise is broken */
#else
#define r_com com
#define r_ack ack
#endif
byte bound;                                /* ranks that coordinator 2's first view has to leave out */
byte wrote[3];                             /* the set that it wrote for its open barrier */
byte rec_term = 1, rec_view, rec_set;      /* the group's record in the Store */

hidden byte v, w, n, j, f, set, who, m;

inline end_barrier(k) {
    bar[k] = 0; acks[k] = 0; wrote[k] = 0; acked_next[k] = 0
}

inline depose(k) {
    ruling = ruling & ~bit(k);
    kcom[k] = 0; used[k] = 0;
    end_barrier(k)
}

/* f: is older the same as newer, or does newer build on it? */
inline chain(older, newer) {
    w = newer;
    do
    :: w > older -> w = pred[w]
    :: else -> break
    od;
    f = (w == older)
}

inline complete(number, view) {
    printf("number %d is complete in view %d\n", number, view);
#ifdef CHECK_A
    assert(done[number] == 0 || done[number] == view); /* no number in two views */
#endif
    if
    :: done[number] == 0 -> done[number] = view
    :: else
    fi;
#ifdef CHECK_B
    m = 0; /* no two active sets beside each other */
    do
    :: m < NUMBERS ->
        if
        :: done[m] != 0 && m < number -> chain(done[m], view); assert(f)
        :: done[m] != 0 && m > number -> chain(view, done[m]); assert(f)
        :: else
        fi;
        m++
    :: else -> break
    od
#endif
}

/* An operation is complete at a rank when every member has begun it in the same view, or the missing ones are judged:
 * by a newer view that has them no more, or, while contact is lost, by proof of their death, as long as no coordinator
 * may have left this rank out unproved (its lease). As soon as it may. */
inline judge(i) {
    n = 0;
    do
    :: n < next[i] && has(alive, i) ->
        v = started[i * NUMBERS + n];
        set = 0; j = 0;
        do
        :: j < RANKS && v != 0 ->
            if
            :: has(members[v], j) && started[j * NUMBERS + n] != v && (has(members[com[i]], j) || !has(members[com[i]], i)) ->
                set = set | bit(j)
            :: else
            fi;
            j++
        :: else -> break
        od;
        if
        :: v != 0 && (set == 0 || ((set & alive) == 0 && has(members[com[i]], i) && (has(lease, i) || LOST_PROOF) &&
                                   (ack[i] == 0 || has(prepared[ack[i]], i) || LEAVING_PROOF))) ->
            complete(n, v)
        :: else
        fi;
        n++
    :: else -> break
    od;
    v = 0; set = 0; j = 0; n = 0; w = 0; f = 0; m = 0
}

inline judge_all() {
    judge(0);
    judge(1);
#if RANKS > 3
    judge(3);
#endif
    judge(2)
}

inline install(i, view) {
    check_d(view > com[i]); /* view ids strictly rise */
    if
    :: has(members[view], i) && has(members[pred[view]], i) ->
        check_d(com[i] == pred[view]);     /* none is skipped: its numbers would run in an older one */
        check_d(from[view] >= from[com[i]]);
        check_d(next[i] <= from[view])     /* nothing that has begun moves into another view */
    :: has(members[view], i) && !has(members[pred[view]], i) -> next[i] = from[view]
    :: else
    fi;
    com[i] = view;
    if
    :: ack[i] <= view -> ack[i] = 0
    :: else
    fi;
    judge(i)
}

inline count_ack(k, i) {
    if
    :: has(ruling, k) && bar[k] != 0 && ack[i] == bar[k] && !has(acks[k], i) ->
        if
        :: has(prepared[bar[k]] & members[kcom[k]], i) ->
            if
            :: SWITCH_MIN && acks[k] != 0 && acked_next[k] < next[i] -> skip
            :: SWITCH_MIN && !(acks[k] != 0 && acked_next[k] < next[i]) -> acked_next[k] = next[i]
            :: else -> acked_next[k] = max(acked_next[k], next[i])
            fi
        :: else
        fi;
        acks[k] = acks[k] | bit(i)
    :: else
    fi
}

/* What nobody can use any more is set to nothing, so that states that differ in it only are one. */
inline tidy() {
    if
    :: (alive & ~told) == 0 && !LOWER_TERM && !PROMISE ->
        depose(1);
        j = 0;
        do
        :: j < RANKS -> gone[j] = 0; j++
        :: else -> break
        od
    :: else
    fi;
    v = 2;
    do
    :: v <= LAST ->
        if
        :: prepared[v] != 0 && members[v] == 0 && bar[1] != v && bar[2] != v ->
            f = 0; j = 0;
            do
            :: j < RANKS -> f = f || ack[j] == v; j++
            :: else -> break
            od;
            if
            :: !f -> prepared[v] = 0; pred[v] = 0
            :: else
            fi
        :: else
        fi;
        v++
    :: else -> break
    od;
    v = 0; j = 0; f = 0
}

inline open_barrier(k, target) {
    used[k]++;
    bar[k] = (k == 1 -> 1 : 1 + VIEWS1) + used[k];
    prepared[bar[k]] = target;
    pred[bar[k]] = kcom[k];
    printf("coordinator %d opens view %d, set %d\n", k, bar[k], prepared[bar[k]])
}

#define mine(k, i) (has(alive, i) && (has(told, i) == ((k) == 2) || LOWER_TERM))
#define may_prepare(k, i)                                                                                              \
    (has(ruling, k) && bar[k] != 0 && mine(k, i) && has(prepared[bar[k]] | members[kcom[k]], i) &&                     \
     (com[i] == kcom[k] || !has(members[kcom[k]], i)) && ack[i] < bar[k] && gone[i] < bar[k] && com[i] < bar[k])
#define may_open(k) (has(ruling, k) && bar[k] == 0 && used[k] < (k == 1 -> VIEWS1 : VIEWS2))

/* w: the newest view reported; f: may coordinator 2 decide upon it?; set: who has to be left out first; n: for whose
 * report it has waited in vain. */
inline may_take_over() {
    j = 0; w = 0;
    do
    :: j < RANKS ->
        if
        :: has(told, j) && r_com[j] > w -> w = r_com[j]
        :: else
        fi;
        j++
    :: else -> break
    od;
    f = w != 0 && (told & alive & members[w]) != 0 && (TAKE_OVER || greater(told & alive, members[w] & alive));
    n = members[w]; /* of whom it has to hear, or offline_us has passed */
    j = 0;
    do /* a view that was ACKed may have been committed: it takes the greater part of it to say that it was not */
    :: j < RANKS ->
        if
        :: has(told, j) && r_ack[j] > w ->
            n = n | prepared[r_ack[j]];
            f = f && (OPEN_ACK || greater(told & alive, prepared[r_ack[j]] & alive))
        :: else
        fi;
        j++
    :: else -> break
    od;
    set = 0;
    if
    :: rec_view > w && !RECORD_IGNORED ->
        /* The record binds: somebody whom it kept has to be here. (When all of these are dead the others may go on: what the
         * dead alone had completed is lost with them, and the model ends there.) */
        f = f && (rec_set & told & alive) != 0;
        n = n | rec_set;
        set = members[w] & ~rec_set
    :: else
    fi;
    n = (GATHER -> 0 : n & ~told);
    j = 0
}

init {
    d_step {
        prepared[1] = (1 << MEMBERS) - 1;
        members[1] = prepared[1];
        kcom[1] = 1;
        j = 0;
        do
        :: j < RANKS ->
            com[j] = (j < MEMBERS -> 1 : 0);
            j++
        :: else -> break
        od;
        j = 0
    };
    do
#define I 0
#include "doubt_rank.pmi"
#undef I
#define I 1
#include "doubt_rank.pmi"
#undef I
#define I 2
#include "doubt_rank.pmi"
#undef I
#if RANKS > 3
#define I 3
#include "doubt_rank.pmi"
#undef I
#endif
#define K 1
#include "doubt_coord.pmi"
#undef K
#define K 2
#include "doubt_coord.pmi"
#undef K
    /* coordinator 2 has gathered enough: it claims the record, and only then decides */
    :: d_step {
        !has(ruling, 2) && (told & alive) != 0 ->
        may_take_over();
        if
        :: f ->
            rec_term = (NO_CLAIM -> rec_term : 2);
            ruling = ruling | bit(2);
            kcom[2] = w;
            bound = set;
            lease = lease & ~n;
            printf("coordinator 2 claims the record and takes over at view %d, leaves out %d\n", w, set)
        :: else
        fi;
        f = 0; w = 0; set = 0; n = 0
    }
    od
}
