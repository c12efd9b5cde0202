/* held.pml: every held operation ends (rules 6 to 8): by COMMIT, by ABORT, or with IN_DOUBT.
 *
 * Two members, a coordinator that may die and may be followed by another one, streams that break, a rank that dies, a
 * Store that may be out of reach. There are FAULTS faults at most; after the last one everybody goes on as its timers
 * and re-sends say (weak fairness of each process). It must never contain a step that ends a hold by itself except
 * those of the three. docs/protocol.md, "Model", names the code of each step.
 *
 * A BREAK_x macro takes one rule away: check.sh wants each of these refuted, and the whole to hold.
 */
#ifndef FAULTS
#define FAULTS 3
#endif
#ifndef VIEWS /* barriers that each coordinator may open */
#define VIEWS 2
#endif
#define RANKS 2
#define bit(i) (1 << (i))
#define has(set, i) (((set) >> (i)) & 1)

byte term = 1;  /* of the newest one that ever ran */
byte k = 1;     /* the coordinator that runs; 0: none */
bool ruling = true;
byte used, kcom = 1, bar, acks, wrote, members = 3;
byte reported, best; /* while it gathers: by whom, the newest view */
bool proof;     /* somebody saw the dead one end */
bool store;     /* the record can be written */
byte alive = 3, proved, out; /* out: it goes on as somebody new */
byte att[RANKS], com[RANKS], ack[RANKS]; /* attached to, newest view, open ACK */
byte gone[RANKS];                        /* view that it was told is aborted */
bool held[RANKS];                        /* an operation waits for the hold to end */
byte faults;

#define here(i) (att[i] == k && k != 0 && !has(out, i))
#ifdef BREAK_NO_RESEND /* what was not taken before the stream broke is not sent again */
#define LOST(i) (cut & bit(i))
byte cut;
#define CUT(i) cut = cut | bit(i)
#else
#define LOST(i) false
#define CUT(i) skip
#endif
#define id(n) ((k - 1) * VIEWS + 1 + (n))

inline let_go(i) {
    ack[i] = 0;
    held[i] = false
}

/* PREPARE, ACK, COMMIT and ABORT on one stream */
proctype Stream(byte i) {
    do
    :: d_step {
        here(i) && ruling && com[i] < kcom && !LOST(i) -> com[i] = kcom;
        if
        :: ack[i] <= kcom -> let_go(i)
        :: else
        fi
    }
    :: d_step { here(i) && ruling && bar != 0 && ack[i] < bar && com[i] == kcom && ack[i] == 0 -> ack[i] = bar }
    :: d_step { here(i) && bar != 0 && ack[i] == bar && !has(acks, i) -> acks = acks | bit(i) }
#ifndef BREAK_NO_ABORT
    :: d_step { here(i) && ruling && ack[i] > kcom && ack[i] != bar -> gone[i] = ack[i]; let_go(i) }
#endif
    od
}

/* attaches again, reports; is in doubt while it cannot */
proctype Session(byte i) {
    do
    :: d_step {
        has(alive, i) && k != 0 && att[i] != k && !has(out, i) ->
        att[i] = k;
        reported = reported | bit(i);
        if
        :: ruling && com[i] > kcom -> out = out | bit(i); com[i] = 0; let_go(i) /* it has lost a view: somebody new */
        :: !(ruling && com[i] > kcom) && com[i] > best -> best = com[i]
        :: else
        fi
    }
#ifndef BREAK_NO_DOUBT
    :: d_step { has(alive, i) && !here(i) && ack[i] != 0 && held[i] -> held[i] = false } /* coordinator_grace */
#endif
    od
}

/* a peer relays COMMIT or ABORT */
proctype Relay(byte i; byte p) {
    do
    :: d_step { has(alive, i) && has(alive, p) && !here(i) && ack[i] != 0 && com[p] >= ack[i] -> com[i] = com[p]; let_go(i) }
    :: d_step { has(alive, i) && has(alive, p) && !here(i) && ack[i] != 0 && gone[p] == ack[i] -> gone[i] = ack[i]; let_go(i) }
    od
}

/* the program: an operation meets the hold */
proctype Program(byte i) {
    do
    :: d_step { has(alive, i) && ack[i] != 0 && !held[i] && here(i) -> held[i] = true }
    od
}

#define missing (members & ~acks)

proctype Coordinator() {
    do
    :: d_step { k != 0 && ruling && bar == 0 && used < VIEWS -> used++; bar = id(used); acks = 0; wrote = 0 }
    :: d_step { k != 0 && ruling && bar != 0 && (missing & ~proved) == 0 -> members = members & acks; kcom = bar; bar = 0 }
    /* ack_us, offline_us: who has not answered is left out, which the record has to say first */
#ifndef BREAK_NO_DEADLINE
    :: d_step {
        k != 0 && ruling && bar != 0 && (missing & ~proved) != 0 && wrote == 0 &&
        ((has(missing, 0) && !here(0)) || (has(missing, 1) && !here(1))) ->
        if
        :: store && acks != 0 -> members = members & acks; kcom = bar; bar = 0
#ifdef BREAK_NO_STORE_ANSWER
        :: !store -> wrote = 1 /* waits for an answer that does not come */
#else
        :: !store -> bar = 0 /* UNAVAILABLE: ABORT */
#endif
        :: store && acks == 0 -> bar = 0
        fi
    }
#endif
    /* a new one has gathered: everybody has reported, is proved dead, or offline_us has passed */
    :: d_step {
        k != 0 && !ruling && reported != 0 &&
        ((reported | proved) == 3 || (!has(reported, 0) && !here(0)) || (!has(reported, 1) && !here(1))) ->
        kcom = best; ruling = true
    }
    :: d_step { k != 0 && proof && (alive | proved) != 3 -> proved = proved | (3 & ~alive) }
    :: d_step { k != 0 && (out & ~proved) != 0 -> proved = proved | out } /* its new incarnation says so */
    od
}

proctype Fault() {
    do
    :: d_step { faults < FAULTS && k != 0 -> faults++; k = 0; ruling = false; bar = 0; acks = 0; wrote = 0; used = 0; att[0] = 0; att[1] = 0 }
    :: d_step { faults < FAULTS && k == 0 && term == 1 -> faults++; term = 2; k = 2; reported = 0; best = 0; proved = 0 }
    :: d_step { faults < FAULTS && att[0] != 0 -> faults++; att[0] = 0; CUT(0) }
    :: d_step { faults < FAULTS && att[1] != 0 -> faults++; att[1] = 0; CUT(1) }
    :: d_step { faults < FAULTS && alive == 3 -> faults++; alive = 1; att[1] = 0; let_go(1) }
    :: d_step { faults < FAULTS && alive == 3 -> faults++; alive = 1; att[1] = 0; let_go(1); proof = true }
    :: d_step { faults < FAULTS && store -> faults++; store = false }
    od
}

init {
    atomic {
        com[0] = 1; com[1] = 1; att[0] = 1; att[1] = 1; store = true;
        run Stream(0); run Stream(1); run Session(0); run Session(1); run Relay(0, 1); run Relay(1, 0);
        run Program(0); run Program(1); run Coordinator(); run Fault()
    }
}

ltl held_ends { [] (!held[0] || <> !held[0]) && [] (!held[1] || <> !held[1]) }
