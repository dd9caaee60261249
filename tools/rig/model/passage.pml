/* LINK/1, section 5: request, replace, cancel, verdict, decision, resolve, over resets and power losses of both ends.

   What session.pml shows is assumed here: inside a session messages arrive once and in order, and nothing of an
   earlier session arrives in a later one. A reset loses the end of what was on its way, and neither end knows how
   much. With FORGED the cable repeats whatever was signed before, in any session, and makes up what is not signed.

   docs/explanation/PROTOCOL_MODEL.md reads this file with you. Requests are 1, 2, …; the number of a verdict is its
   verdict_seq, and (request, number) its verdict_ref. Time is not modelled: a deadline may end whenever nothing else
   can happen, and with HURRY also before. */

#ifndef REQUESTS
#define REQUESTS 2
#endif
#ifndef RESTARTS
#define RESTARTS 2   /* power losses, of either end */
#endif
#ifndef RESETS
#define RESETS 1     /* sessions that end for any other reason */
#endif
#ifndef HURRY
#define HURRY 1      /* cancels, and deadlines that end while the answer is on its way */
#endif
#ifndef FORGED
#define FORGED 0     /* messages of an attacker in the cable */
#endif
#ifndef ROLLBACKS
#define ROLLBACKS 0  /* a device that is given an older copy of its storage back */
#endif

#define HANDS REQUESTS
#define SEQS (REQUESTS + 1)
#define REF(i, n) ((i) * SEQS + (n))
#define REFS ((REQUESTS + 1) * SEQS + 1)
#define CAPACITY 3
#define D 0
#define V 1

mtype = { RST, RSTACK, REQUEST, CANCEL, VERDICT, DECISION, RESOLVE, UNKNOWN, ENDED };

/* kind, session, request, number; of a decision 2 * number + actuated */
chan to_d = [CAPACITY] of { mtype, byte, byte, byte };
chan to_v = [CAPACITY] of { mtype, byte, byte, byte };

byte sessions;                 /* begun so far */
byte ses[2]; bit up[2];        /* an end's session; up: the proofs are done, and it may say what it wants */
bit rst_due[2];
bit cut[2];                    /* the rest of an ended session did not arrive at this end */

/* The device. Durable: */
byte last_seq, verdict_of[REQUESTS + 1], outcome[REQUESTS + 1];
bit ended[REQUESTS + 1];       /* it ended without a verdict */
/* lost with the power: */
byte armed, deciding, sending, deciding_ses; /* sending: its verdict is durable, and not sent yet */
bit ask[REQUESTS + 1];         /* verdicts to be listed in `resolve` */
byte hand;                     /* in view: 0 none, 1 has answered nothing, 2 has answered */

#define NOTHING 0
#define NOT_KNOWN 1            /* no decision came in time, or the verdict was never sent */
#define DISOWNED 2             /* `unknown` */
#define CLOSED 3               /* a decision with actuated false */
#define OPENED 4               /* a decision with actuated true */

/* The validator. Durable: */
byte highest, made, answer[REFS]; /* answer: 0 none, CLOSED, OPENED */
/* lost with the power: */
byte open, opening;               /* opening: the request whose turnstile is about to be opened */
bit request_due;
byte unresolved[REQUESTS + 1];

/* For the claims alone; no end looks at these. */
byte actuated[REQUESTS + 1], acted_last, hands, hand_of, session_of[REQUESTS + 1], owner[SEQS + 1];
bit over[REQUESTS + 1], told[REQUESTS + 1], disowned[REFS], asked[REQUESTS + 1], shown[REQUESTS + 1];

byte restarts = RESTARTS, resets = RESETS, hurry = HURRY, forged = FORGED, rollbacks = ROLLBACKS;

#define ANY(flags) (flags[1] || flags[REQUESTS] || flags[REQUESTS / 2 + 1])
#define QUIET (len(to_d) == 0 && len(to_v) == 0 && up[D] && up[V] && !rst_due[D] && !rst_due[V] && !deciding && !sending && !opening && \
  !(armed && hand == 1) && !(open && request_due) && !ANY(ask) && !(!open && ANY(unresolved)))
#define ANSWERED(i) (verdict_of[i] == 0 || outcome[i] != NOTHING)
#define LEARNED(i) (verdict_of[i] == 0 || answer[REF(i, verdict_of[i])] == 0 || \
  answer[REF(i, verdict_of[i])] == outcome[i] || \
  (outcome[i] == DISOWNED && (FORGED || answer[REF(i, verdict_of[i])] == CLOSED)))
#define SETTLED (QUIET && !open && !armed && ANSWERED(1) && ANSWERED(2) && LEARNED(1) && LEARNED(2))

inline session_ends(me) {
  up[me] = 0;
  if
  :: me == D -> armed = 0; ask[1] = 0; ask[2] = 0; ask[REQUESTS] = 0
  :: me == V -> unresolved[1] = 0; unresolved[2] = 0; unresolved[REQUESTS] = 0
  fi
}

inline resets_link(me) {
  session_ends(me); sessions++; ses[me] = sessions; rst_due[me] = 1
}

inline session_begins(me) {
  up[me] = 1;
  if
  :: me == D ->
#ifndef MUTANT_NO_RESOLVE
     ask_for(1); ask_for(2); ask_for(REQUESTS)
#endif
  :: me == V -> request_due = (open != 0)
  fi
}
inline ask_for(i) { ask[i] = (verdict_of[i] != 0 && outcome[i] <= NOT_KNOWN) }

/* RST and RSTACK. Of two resets that cross the later one counts here; session.pml has the tags. */
inline link(me, mine, kind, s) {
  if
  :: kind == RST && s > ses[me] -> cut[me] = 0; session_ends(me); rst_due[me] = 0; ses[me] = s; mine!RSTACK,s,0,0; session_begins(me)
  :: kind == RSTACK && !up[me] && s == ses[me] -> cut[me] = 0; session_begins(me)
  :: else
  fi
}

/* Of a session that its sender has ended, the rest may be lost; of an earlier session of one's own, all is dropped. */
#define HERE(me, s) (up[me] && s == ses[me] && !cut[me])

inline may_be_cut(me, s) {
  if
  :: s == ses[me] && (ses[1 - me] != s || rst_due[1 - me]) -> cut[me] = 1
  :: true
  fi
}

/* ---- the device */

inline say_verdict(i) {
  assert(session_of[i] == ses[D]);                                /* P5: only where it was asked for */
  assert(ROLLBACKS || owner[verdict_of[i]] == 0 || owner[verdict_of[i]] == i); /* P4: a number means one verdict */
  owner[verdict_of[i]] = i; shown[i] = 1;
  to_v!VERDICT,ses[D],i,verdict_of[i]
}

inline end_without_verdict(i) {
#ifndef MUTANT_END_FORGOTTEN
  ended[i] = 1;
#endif
  told[i] = 1
}

inline device_takes(kind, i, n) {
  if
  :: kind == REQUEST ->
     session_of[i] = ses[D];
     if
     :: deciding == i || sending == i -> deciding_ses = ses[D]
#ifndef MUTANT_REQUEST_FORGOTTEN
     :: sending != i && verdict_of[i] != 0 -> say_verdict(i)
#endif
     :: ended[i] -> to_v!ENDED,ses[D],i,0
     :: armed == i
     :: else ->
        if :: armed != 0 -> end_without_verdict(armed) :: else fi; /* replaced */
        armed = i
     fi
  :: kind == CANCEL ->
     if
     :: armed == i -> end_without_verdict(i); armed = 0; to_v!ENDED,ses[D],i,0
     :: armed != i && ended[i] -> to_v!ENDED,ses[D],i,0
     :: else
     fi
  :: kind == DECISION ->
     if
     :: verdict_of[i] == n / 2 && outcome[i] < CLOSED ->
        outcome[i] = CLOSED + n % 2; ask[i] = 0;
        assert(ROLLBACKS || n % 2 || !actuated[i])                /* P7: what is recorded is what happened */
     :: verdict_of[i] == n / 2 && outcome[i] >= CLOSED ->
        assert(ROLLBACKS || outcome[i] == CLOSED + n % 2)         /* P7 */
     :: else
     fi
  :: kind == UNKNOWN -> if :: verdict_of[i] == n && outcome[i] < CLOSED -> outcome[i] = DISOWNED; ask[i] = 0 :: else fi
  :: else
  fi
}

proctype Device() {
  mtype kind; byte s, i, n;
  do
  :: atomic { nfull(to_v) && nempty(to_d) -> to_d?kind,s,i,n; may_be_cut(D, s);
       link(D, to_v, kind, s);
       if :: HERE(D, s) -> device_takes(kind, i, n) :: else fi;
       kind = 0; s = 0; i = 0; n = 0 }
  :: atomic { rst_due[D] && nfull(to_v) -> rst_due[D] = 0; to_v!RST,ses[D],0,0 }

  /* A hand comes, and leaves. */
  :: atomic { hands < HANDS && hand == 0 -> hands++; hand_of = 0; hand = 1 }
  :: hand != 0 -> hand = 0

  /* A hand that has answered nothing decides; the verdict becomes durable, then it is sent. */
  :: atomic { armed && hand == 1 && !deciding && !sending -> deciding = armed; deciding_ses = ses[D]; armed = 0;
       assert(hand_of == 0); hand_of = deciding;                  /* P3: one hand, one verdict */
#ifndef MUTANT_HAND_NOT_SPENT
       hand = 2
#endif
     }
#ifdef MUTANT_SENT_BEFORE_DURABLE
  :: atomic { deciding && up[D] && nfull(to_v) && deciding_ses == ses[D] && owner[last_seq + 1] != deciding ->
       owner[last_seq + 1] = deciding;
       to_v!VERDICT,ses[D],deciding,last_seq + 1 }
#endif
  :: atomic { deciding ->
       assert(verdict_of[deciding] == 0);                         /* P4: one verdict for a request */
       assert(!told[deciding]);                                   /* P6: none for a request that has ended */
       last_seq++; verdict_of[deciding] = last_seq;
       sending = deciding; deciding = 0 }
  :: atomic { sending && up[D] && deciding_ses == ses[D] && nfull(to_v) -> say_verdict(sending); sending = 0; deciding_ses = 0 }
  :: atomic { sending && !(up[D] && deciding_ses == ses[D]) -> outcome[sending] = NOT_KNOWN; sending = 0; deciding_ses = 0 }

#ifdef MUTANT_PUSHED
  :: atomic { up[D] && ask[1] && nfull(to_v) -> ask[1] = 0; say_verdict(1) }
#endif
  /* `resolve`, one verdict a message */
  :: atomic { up[D] && ask[1] && nfull(to_v) -> ask[1] = 0; to_v!RESOLVE,ses[D],1,verdict_of[1] }
  :: atomic { up[D] && ask[2] && nfull(to_v) -> ask[2] = 0; to_v!RESOLVE,ses[D],2,verdict_of[2] }
#if REQUESTS > 2
  :: atomic { up[D] && ask[3] && nfull(to_v) -> ask[3] = 0; to_v!RESOLVE,ses[D],3,verdict_of[3] }
#endif

  /* Deadlines: no hand by the ttl; no decision in 5 s. */
  :: atomic { (QUIET || (hurry > 0 && up[D] && nfull(to_v))) && armed && hand != 1 ->
       if :: QUIET :: else -> hurry-- fi;
       end_without_verdict(armed); to_v!ENDED,ses[D],armed,0; armed = 0 }
  :: atomic { QUIET && verdict_of[1] && outcome[1] == NOTHING -> outcome[1] = NOT_KNOWN }
  :: atomic { QUIET && verdict_of[2] && outcome[2] == NOTHING -> outcome[2] = NOT_KNOWN }
#if REQUESTS > 2
  :: atomic { QUIET && verdict_of[3] && outcome[3] == NOTHING -> outcome[3] = NOT_KNOWN }
#endif

  :: atomic { resets > 0 && up[D] -> resets--; resets_link(D) }
  :: atomic { restarts > 0 -> restarts--; resets_link(D); armed = 0; deciding = 0; sending = 0; deciding_ses = 0;
       if
#ifdef MUTANT_HAND_FORGOTTEN
       :: hand == 2 -> hand = 1
#else
       :: hand == 1 -> hand = 2 /* which hand it is, is not known any more */
#endif
       :: else
       fi;
       if
       :: rollbacks > 0 && last_seq > 0 -> rollbacks--;
          i = owner[last_seq]; if :: i && verdict_of[i] == last_seq -> verdict_of[i] = 0; outcome[i] = 0 :: else fi;
          last_seq--; i = 0
       :: true
       fi }
  od
}

/* ---- the validator */

inline request_over() { over[open] = 1; open = 0; request_due = 0 }

inline acts(i, n) {
  actuated[i]++;
  assert(actuated[i] == 1);                                       /* P1: the turnstile opens once for a request */
  assert(!over[i]);                                               /* P1: and not for one that is over */
  assert(ROLLBACKS || verdict_of[i] == n);                        /* P2: only for a verdict that the device keeps */
  assert(n > acted_last); acted_last = n;                         /* P4: in the order of the numbers */
  assert(!disowned[REF(i, n)]);                                   /* P8: never after `unknown` */
  assert(ROLLBACKS || outcome[i] != CLOSED)                       /* P7 */
}

inline validator_takes(kind, i, n) {
  if
#ifndef MUTANT_COPY_JUDGED_AGAIN
  :: kind == VERDICT && answer[REF(i, n)] != 0 -> say_decision(i, n)
  :: kind == VERDICT && answer[REF(i, n)] == 0 ->
#else
  :: kind == VERDICT ->
#endif
     if
#ifdef MUTANT_OPEN_NOT_COMPARED
     :: n > highest ->
#else
#ifdef MUTANT_SEQ_NOT_COMPARED
     :: open == i ->
#else
     :: open == i && n > highest ->
#endif
#endif
#ifndef MUTANT_OPENED_BEFORE_DURABLE
        highest = n; answer[REF(i, n)] = OPENED;
#else
        acts(i, n);
#endif
        opening = i
     :: else ->
        answer[REF(i, n)] = CLOSED;
        to_d!DECISION,ses[V],i,2 * n
     fi;
     if :: open == i -> request_due = 0; open = 0 :: else fi
  :: kind == ENDED && open == i -> request_over()
  :: kind == RESOLVE && answer[REF(i, n)] != 0 -> say_decision(i, n)
  :: kind == RESOLVE && answer[REF(i, n)] == 0 ->
#ifdef MUTANT_UNKNOWN_WHILE_OPEN
     unknown(i, n)
#else
     unresolved[i] = n
#endif
  :: else
  fi
}

inline say_decision(i, n) { to_d!DECISION,ses[V],i,2 * n + (answer[REF(i, n)] == OPENED) }

inline unknown(i, n) {
  assert(!actuated[i]); disowned[REF(i, n)] = 1;                  /* P8 */
  to_d!UNKNOWN,ses[V],i,n
}

inline says_unknown(i) {
  if
  :: answer[REF(i, unresolved[i])] == 0 -> unknown(i, unresolved[i])
  :: else
  fi;
  unresolved[i] = 0
}

proctype Validator() {
  mtype kind; byte s, i, n;
  do
  :: atomic { nfull(to_d) && nempty(to_v) && !opening -> to_v?kind,s,i,n; may_be_cut(V, s);
       link(V, to_d, kind, s);
       if :: HERE(V, s) -> validator_takes(kind, i, n) :: else fi;
       if :: !opening -> i = 0; n = 0 :: else fi; kind = 0; s = 0 }
  :: atomic { rst_due[V] && nfull(to_d) -> rst_due[V] = 0; to_d!RST,ses[V],0,0 }

  /* The answer is durable: open, then say so. */
  :: atomic { opening && nfull(to_d) ->
#ifndef MUTANT_OPENED_BEFORE_DURABLE
       acts(opening, n);
#else
       highest = n; answer[REF(opening, n)] = OPENED;
#endif
       if :: up[V] -> say_decision(opening, n) :: else fi;
       opening = 0; i = 0; n = 0 }

  /* A new request replaces the open one; it goes out as soon as the device is proven, and again after a reset. */
  :: atomic { made < REQUESTS && !opening -> made++; if :: open -> request_over() :: else fi; open = made; request_due = 1 }
  :: atomic { open && request_due && up[V] && nfull(to_d) -> request_due = 0; asked[open] = 1; to_d!REQUEST,ses[V],open,0 }
  :: atomic { hurry > 0 && open && !opening && nfull(to_d) -> hurry--;
       if :: up[V] && !request_due -> to_d!CANCEL,ses[V],open,0 :: else fi; request_over() }
  :: atomic { QUIET && open && !armed -> request_over() }         /* ttl and 2 s are over */

  /* `unknown`, once no request is open that the verdict may belong to */
  :: atomic { !open && !opening && up[V] && unresolved[1] && nfull(to_d) -> says_unknown(1) }
  :: atomic { !open && !opening && up[V] && unresolved[2] && nfull(to_d) -> says_unknown(2) }
#if REQUESTS > 2
  :: atomic { !open && !opening && up[V] && unresolved[3] && nfull(to_d) -> says_unknown(3) }
#endif

  :: atomic { resets > 0 && up[V] && !opening -> resets--; resets_link(V) }
  :: atomic { restarts > 0 -> restarts--; resets_link(V); opening = 0; i = 0; n = 0;
       if :: open -> request_over() :: else fi }
  od
}

/* ---- an attacker in the cable repeats what was signed and makes up what was not */

#if FORGED > 0
proctype Attacker() {
  byte i;
  do
  :: atomic { forged > 0 && nfull(to_d) && up[D] -> forged--;
       select(i : 1 .. REQUESTS);
       if
       :: asked[i] -> to_d!REQUEST,ses[D],i,0
       :: true -> to_d!CANCEL,ses[D],i,0
       :: shown[i] && answer[REF(i, verdict_of[i])] != 0 ->
          to_d!DECISION,ses[D],i,2 * verdict_of[i] + (answer[REF(i, verdict_of[i])] == OPENED)
       :: shown[i] -> to_d!UNKNOWN,ses[D],i,verdict_of[i]
       fi; i = 0 }
  :: atomic { forged > 0 && nfull(to_v) && up[V] -> forged--;
       select(i : 1 .. REQUESTS);
       if
       :: shown[i] -> to_v!VERDICT,ses[V],i,verdict_of[i]
       :: true -> to_v!ENDED,ses[V],i,0
       :: shown[i] -> to_v!RESOLVE,ses[V],i,verdict_of[i]
       fi; i = 0 }
  :: forged == 0 -> break
  od
}
#endif

init {
  atomic {
    sessions = 1; ses[V] = 1; rst_due[V] = 1; hand_of = 0;
    run Device(); run Validator();
#if FORGED > 0
    run Attacker()
#endif
  }
}

/* L: whatever has happened, every request ends at last, every verdict has an outcome, and every decision that the
   validator made is known to the device; instead of one that opened nothing it may know `unknown`. */
ltl settles { <>[] SETTLED }
