/* LINK/1, sections 1 to 4: two ends, a cable that loses, repeats and delays, sessions, stop-and-wait, handshake.

   docs/explanation/PROTOCOL_MODEL.md reads this file with you. A mutant (-DMUTANT_...) leaves one rule
   out; `python -m tools.rig.model` shows that each breaks a claim, and each claim is broken by one.

   Names: end 0 is the device, end 1 the validator. A tag is unique; its lowest bit is its "first byte", so of three
   tags in a row two always share it: the worst case of 256 values. A nonce is a number that is never used twice. */

#ifndef RESTARTS
#define RESTARTS 2   /* power losses, of either end */
#endif
#ifndef FAULTS
#define FAULTS 1     /* a frame lost or damaged, a frame delivered twice, a timer that ends early, a link declared down */
#endif
#ifndef REPLAYS
#define REPLAYS 0    /* frames that the cable keeps and delivers again at any later time; of any kind with REPLAY_ALL */
#endif
#ifdef REPLAY_ALL    /* a byte of a tag is not enough against those: then only the handshake is checked */
#define IN_FIFO(claim) true
#define KEEPS(to) nempty(wire[to])
#else
#define IN_FIFO(claim) (claim)
#define KEEPS(to) (wire[to]?[RST,_,_,_,_,_] || wire[to]?[RSTACK,_,_,_,_,_])
#endif

#define CAPACITY 3   /* frames on their way in one direction */
#define MESSAGES 3   /* of each end in a session: 0 hello, 1 prove, 2 anything that needs the proofs */
#define PEER (1 - me)
#define FIRST(tag) ((tag) & 1)

mtype = { RST, RSTACK, DATA, ACK };

/* Towards each end: kind; two numbers; mid. Their meaning by kind:
   RST     sender's tag
   RSTACK  the tag answered, the sender's tag
   DATA    first byte of the receiver's tag, mid; own nonce, peer's nonce; the whole tag (which no frame carries)
   ACK     first byte of the receiver's tag, mid; the whole tag */
chan wire[2] = [CAPACITY] of { mtype, byte, byte, byte, byte, byte };

/* What an end holds; all of it is lost with the power but `made`, which only counts. */
bit up[2];                /* RSTACK came, or an RST was answered */
byte tag[2], peer[2];     /* 0: none */
bit rst_due[2], rstack_due[2], ack_due[2];
byte ack_mid[2];
byte queued[2], acked[2]; /* messages of this session: said by the end, acknowledged by the peer */
bit out[2];               /* the message `acked` is on its way */
byte tries[2];
byte expected[2];         /* the mid after the last one delivered */
byte nonce[2], heard[2];  /* own nonce, 0 without a session, nonce of the peer's hello */
bit proven[2];
byte made[2];             /* tags ever made, for uniqueness */

byte restarts = RESTARTS, faults = FAULTS, replays = REPLAYS;

/* Nothing is on its way and neither end has anything to say: now timers end. */
#define SAYS(e) (rst_due[e] || rstack_due[e] || (up[e] && (ack_due[e] || (queued[e] > acked[e] && !out[e]))))
#define IDLE (empty(wire[0]) && empty(wire[1]) && !SAYS(0) && !SAYS(1))
#define JOINED (up[0] && up[1] && peer[0] == tag[1] && peer[1] == tag[0])
#define DONE (JOINED && proven[0] && proven[1] && acked[0] == MESSAGES && acked[1] == MESSAGES)

inline clear() {
  peer[me] = 0; ack_due[me] = 0; rst_due[me] = 0; rstack_due[me] = 0;
  queued[me] = 0; acked[me] = 0; out[me] = 0; tries[me] = 0;
#ifndef MUTANT_RECEIVER_KEPT
  expected[me] = 0;
#endif
  nonce[me] = 0; heard[me] = 0; proven[me] = 0
}

/* A tag whose first byte differs from that of the last one; after a power loss the last one is forgotten. */
inline fresh_tag() {
#ifdef MUTANT_TAG_KEPT
  if :: tag[me] == 0 -> made[me]++; tag[me] = 2 * made[me] :: else fi
#else
  made[me]++;
  if
  :: tag[me] != 0 -> tag[me] = 2 * made[me] + 1 - FIRST(tag[me])
#ifdef MUTANT_FIRST_BYTE_REPEATED
  :: tag[me] != 0 -> tag[me] = 2 * made[me] + FIRST(tag[me])
#endif
  :: tag[me] == 0 -> tag[me] = 2 * made[me]
  :: tag[me] == 0 -> tag[me] = 2 * made[me] + 1
  fi
#endif
}

inline reset() { clear(); fresh_tag(); up[me] = 0; rst_due[me] = 1 }

inline session_begins() {
  up[me] = 1; rst_due[me] = 0;
  nonce[me] = tag[me]; /* as fresh as the tag is */
  queued[me] = 1 /* hello */
}

inline take(kind, a, b, mid, x, whole) {
  if
  :: kind == RST && a == peer[me] -> rstack_due[me] = 1
  :: kind == RST && a != peer[me] ->
     if
     :: up[me] -> clear(); peer[me] = a; fresh_tag(); rstack_due[me] = 1; session_begins()
     :: else -> peer[me] = a; rstack_due[me] = 1
     fi
#ifdef MUTANT_ANY_RSTACK
  :: kind == RSTACK && !up[me] -> peer[me] = b; session_begins()
  :: kind == RSTACK && up[me]
#else
  :: kind == RSTACK && !up[me] && a == tag[me] -> peer[me] = b; session_begins()
  :: kind == RSTACK && (up[me] || a != tag[me])
#endif
#ifdef MUTANT_SESS_NOT_COMPARED
  :: kind == DATA && up[me] -> take_data(mid, x, b, whole)
  :: kind == DATA && !up[me]
#else
#ifdef MUTANT_DATA_WHILE_RESETTING
  :: kind == DATA && a == FIRST(tag[me]) -> take_data(mid, x, b, whole)
  :: kind == DATA && a != FIRST(tag[me])
#else
  :: kind == DATA && up[me] && a == FIRST(tag[me]) -> take_data(mid, x, b, whole)
  :: kind == DATA && !(up[me] && a == FIRST(tag[me]))
#endif
#endif
  :: kind == ACK && up[me] && a == FIRST(tag[me]) && out[me] && mid == acked[me] ->
     assert(IN_FIFO(whole == tag[me]));                   /* S1 */
     assert(IN_FIFO(!JOINED || expected[PEER] > mid));    /* S4: what counts as arrived has arrived */
     acked[me]++; out[me] = 0; tries[me] = 0
  :: kind == ACK && !(up[me] && a == FIRST(tag[me]) && out[me] && mid == acked[me])
  fi
}

inline take_data(mid, x, y, whole) {
  if
#ifdef MUTANT_MID_NOT_COMPARED
  :: true ->
#else
  :: mid < expected[me] -> ack_due[me] = 1; ack_mid[me] = mid
  :: mid > expected[me]
  :: mid == expected[me] ->
#endif
     ack_due[me] = 1; ack_mid[me] = mid;
     assert(IN_FIFO(whole == tag[me]));                   /* S1: nothing of an earlier session */
     assert(mid == expected[me]);                         /* S2: each message once, in order */
     expected[me]++;
     if
#ifndef MUTANT_PROOF_NOT_AWAITED
     :: mid == 0 -> heard[me] = x; queued[me] = 2         /* hello: answer with the proof */
#else
     :: mid == 0 -> heard[me] = x; queued[me] = 3
#endif
#ifndef MUTANT_NONCE_NOT_COMPARED
#ifndef MUTANT_PROOF_NOT_AWAITED
     :: mid == 1 && !(x == heard[me] && y == nonce[me]) -> reset()
#else
     :: mid == 1 && !(x == heard[me] && y == nonce[me])
#endif
     :: mid == 1 && x == heard[me] && y == nonce[me] ->
#else
     :: mid == 1 ->
#endif
        assert(y == nonce[me] && (!JOINED || x == nonce[PEER])); /* S3: both ends speak of this session */
        proven[me] = 1; queued[me] = 3
     :: mid == 2 ->
        assert(proven[me])                                /* S5: nothing is served before the proofs */
     fi
  fi
}

proctype End(bit me) {
  mtype kind; byte a, b, mid, x, whole;
  d_step { made[me]++; tag[me] = 2 * made[me]; rst_due[me] = 1 }
  do
  /* a frame comes */
  :: atomic { wire[me]?kind,a,b,mid,x,whole ->
       take(kind, a, b, mid, x, whole); kind = 0; a = 0; b = 0; mid = 0; x = 0; whole = 0 }
  :: atomic { faults > 0 && nempty(wire[me]) -> faults--; wire[me]?<kind,a,b,mid,x,whole> ->
       take(kind, a, b, mid, x, whole); kind = 0; a = 0; b = 0; mid = 0; x = 0; whole = 0 }

  /* a frame goes: replies before DATA */
  :: atomic { nfull(wire[PEER]) && rstack_due[me] -> rstack_due[me] = 0; wire[PEER]!RSTACK,peer[me],tag[me],0,0,0 }
  :: atomic { nfull(wire[PEER]) && rst_due[me] && !rstack_due[me] -> rst_due[me] = 0; wire[PEER]!RST,tag[me],0,0,0,0 }
  :: atomic { nfull(wire[PEER]) && up[me] && ack_due[me] && !rstack_due[me] ->
       ack_due[me] = 0; wire[PEER]!ACK,FIRST(peer[me]),0,ack_mid[me],0,peer[me]; ack_mid[me] = 0 }
  :: atomic { nfull(wire[PEER]) && up[me] && !ack_due[me] && !rstack_due[me] && queued[me] > acked[me] && !out[me] ->
       out[me] = 1;
       wire[PEER]!DATA,FIRST(peer[me]),(acked[me] == 1 -> heard[me] : 0),acked[me],nonce[me],peer[me] }

  /* a timer ends; an end that is resetting says RST every 500 ms, which no other timer outruns */
#ifndef MUTANT_RST_ONCE
  :: atomic { IDLE && !up[me] -> rst_due[me] = 1 }
#endif
#ifndef MUTANT_NO_RETRANSMISSION
  :: atomic { IDLE && up[me] && up[PEER] && out[me] && tries[me] < 2 -> tries[me]++; out[me] = 0 }
#endif
  :: atomic { IDLE && up[me] && up[PEER] && out[me] && tries[me] == 2 -> reset() }
  :: atomic { IDLE && up[me] && up[PEER] && !out[me] && !proven[me] -> reset() }                 /* 5 s for both proofs */
  :: atomic { IDLE && up[me] && up[PEER] && !out[me] && proven[me] && !JOINED -> reset() }       /* no PONG: 2 s of silence */

  /* and what should not happen */
  :: atomic { faults > 0 && up[me] && out[me] -> faults--; out[me] = 0 }
  :: atomic { faults > 0 && !up[me] && !rst_due[me] -> faults--; rst_due[me] = 1 }
  :: atomic { faults > 0 && up[me] -> faults--; reset() }
  :: atomic { restarts > 0 -> restarts--; tag[me] = 0; reset() }
  od
}

/* The cable loses, and with REPLAYS keeps one frame and delivers it once more at any later time. */
proctype Cable() {
  mtype kind; byte a, b, mid, x, whole; bit to;
  do
  :: atomic { faults > 0 && nempty(wire[0]) -> faults--; wire[0]?_,_,_,_,_,_ }
  :: atomic { faults > 0 && nempty(wire[1]) -> faults--; wire[1]?_,_,_,_,_,_ }
#if REPLAYS > 0
  :: atomic { replays > 0 && kind == 0 && KEEPS(0) -> to = 0; wire[0]?<kind,a,b,mid,x,whole> }
  :: atomic { replays > 0 && kind == 0 && KEEPS(1) -> to = 1; wire[1]?<kind,a,b,mid,x,whole> }
  :: atomic { replays > 0 && kind != 0 && nfull(wire[to]) -> replays--; wire[to]!kind,a,b,mid,x,whole; 
       kind = 0; a = 0; b = 0; mid = 0; x = 0; whole = 0; to = 0 }
#endif
  :: faults == 0 && replays == 0 -> break
  od
}

init { atomic { run End(0); run End(1); run Cable() } }

/* L: whatever has happened, both ends are proven to each other at last and all messages have arrived. */
ltl recovers { <>[] DONE }
