/*
 * The lease and the fence: two clients, one store, one fenced resource, and a network that keeps, delays and loses.
 *
 * Time is what is left of things, never a date: each tick takes one from everything that runs out, so no end of time
 * bounds what can happen. A client that takes no step while ticks pass is paused; one whose answer does not come has it
 * late, or lost. Both may go on for ever, as may renewals and writes. Bounded are the acquisitions alone, for each draws
 * a new owner and, if it is granted, a new token: two by one client and one by the other, so that the key can go from
 * the first to the second and back.
 *
 * Four facts are asserted:
 *   regressed      the resource accepted a write whose token is below one that it accepted before
 *   two_believers  two clients that look at their clocks would both believe that they hold the key
 *   token_reused   a grant got a token that is not above that of every grant before it
 *   false_yes      the store confirmed a renewal to somebody else than the recorded owner
 *
 * Each switch below takes one rule away. Without it one of the facts fails, so the rule is needed, and the model sees it.
 *   FENCED=0               the resource takes whatever comes
 *   DEADLINE_FROM_REPLY=1  the holder trusts its lease for a ttl from the answer, and not from when it asked
 *   RENEW_BY_ANYONE=1      the store renews a live lock for whoever asks. The holders' own deadlines hide it, which is
 *                          why an answer is a fact of its own here: two_believers fails only with REVIVE=1 beside it
 *   REVIVE=1               a confirmed renewal gives back a lease that was lost; harmless as long as the store checks
 *   RELEASE_BY_ANYONE=1    the store releases a live lock for whoever asks
 *   FORGETS_TOKENS=1       a release takes the key's last token with it
 */

#ifndef FENCED
#define FENCED 1
#endif
#ifndef DEADLINE_FROM_REPLY
#define DEADLINE_FROM_REPLY 0
#endif
#ifndef RENEW_BY_ANYONE
#define RENEW_BY_ANYONE 0
#endif
#ifndef REVIVE
#define REVIVE 0
#endif
#ifndef RELEASE_BY_ANYONE
#define RELEASE_BY_ANYONE 0
#endif
#ifndef FORGETS_TOKENS
#define FORGETS_TOKENS 0
#endif

/* Three ticks are the fewest in which a lease can be granted, grow old, be renewed and still run out. */
#define TTL 3
#define OWNERS 3 /* 1 and 2 are drawn by the first client, 3 by the second */
#define NOBODY 0

#define NO_CALL 0
#define ACQUIRE 1
#define RENEW 2

#define NO_ANSWER 0
#define YES 1
#define NO 2

/* ------------------------------------------------------------------------------------ the store, and the resource */

byte holder = NOBODY; /* the recorded owner; an expired lock does not exist, so it is nobody then */
byte expires;         /* what is left of the lock, on the store's clock */
byte last_token;      /* of the key, kept when the lock is gone */
byte highest;         /* the greatest token that the resource has accepted */

/* ---------------------------------------------------------------------------------------------------- the clients */

byte owner[2];    /* of the acquisition at hand */
byte token[2];    /* of the lease at hand */
byte trusted[2];  /* what is left until the client's own deadline; more than 0: it believes */
byte call[2];     /* a call that the store has not seen yet */
byte answer[2];   /* an answer that the client has not seen yet */
byte since[2];    /* what would be left of a ttl that began when the call was sent */
byte writing[2];  /* the token of a write on its way to the resource, 0 for none */

/* What clients gave up waiting for is on its way all the same, and may arrive long after. */
bit late_acquire[OWNERS + 1];
bit late_renew[OWNERS + 1];
bit releasing[OWNERS + 1];

/* ------------------------------------------------------------------------------------------------------ the facts */

bool regressed, two_believers, token_reused, false_yes;
byte newest; /* the greatest token that was ever granted, which the store does not get to see */

inline one_less(what) {
  if
  :: what > 0 -> what--
  :: else
  fi
}

/* What the store does with a call. Always inside of d_step: nothing comes between its looking and its writing. */
inline acquire(who, said, granted) {
  if
  :: holder == NOBODY ->
       holder = who; expires = TTL;
       last_token++;
       granted = last_token;
       if
       :: granted <= newest -> token_reused = true
       :: else -> newest = granted
       fi;
       said = YES
  :: else -> said = NO
  fi
}

inline renew(who, said) {
  if
  :: holder != NOBODY && holder == who -> expires = TTL; said = YES
  :: holder != NOBODY && holder != who && RENEW_BY_ANYONE -> expires = TTL; said = YES; false_yes = true
  :: else -> said = NO
  fi
}

inline release(who) {
  if
  :: holder != NOBODY && (holder == who || RELEASE_BY_ANYONE) ->
       holder = NOBODY; expires = 0;
       if
       :: FORGETS_TOKENS -> last_token = 0
       :: else
       fi
  :: else
  fi
}

proctype Clock() {
  do
  :: d_step {
       one_less(expires);
       if
       :: expires == 0 -> holder = NOBODY
       :: else
       fi;
       one_less(trusted[0]); one_less(trusted[1]);
       one_less(since[0]); one_less(since[1])
     }
  od
}

/* ----------------------------------------------------------------------------------------------------- the network */

/* A call that its client waits for: the answer goes back with it. */
#define AWAITED(i) \
  :: d_step { call[i] == ACQUIRE -> call[i] = NO_CALL; acquire(owner[i], answer[i], token[i]) } \
  :: d_step { call[i] == RENEW -> call[i] = NO_CALL; renew(owner[i], answer[i]) }

/* What nobody waits for: the store does it all the same, in whatever order it comes. */
#define LATE(who) \
  :: d_step { late_acquire[who] -> late_acquire[who] = 0; acquire(who, unheard, unheard); unheard = 0 } \
  :: d_step { late_renew[who] -> late_renew[who] = 0; renew(who, unheard); unheard = 0 } \
  :: d_step { releasing[who] -> releasing[who] = 0; release(who) }

/* A write reaches the resource, which compares its token in the step that writes. */
#define WRITTEN(i) \
  :: d_step { writing[i] != 0 -> \
       if \
       :: writing[i] >= highest -> highest = writing[i] \
       :: writing[i] < highest && !FENCED -> regressed = true \
       :: else \
       fi; \
       writing[i] = 0 }

/* Whatever is on its way arrives now or later. What never does is as good as lost. */
proctype Network() {
  byte unheard;
  do
  AWAITED(0)
  AWAITED(1)
  LATE(1)
  LATE(2)
  LATE(3)
  WRITTEN(0)
  WRITTEN(1)
  od
}

/* ----------------------------------------------------------------------------------------------------- the clients */

/* An answer that grants, or that confirms a renewal. The call may have taken longer than a ttl: then nothing is left. */
inline believe(me) {
  trusted[me] = (DEADLINE_FROM_REPLY -> TTL : since[me]);
  if
  :: trusted[me] > 0 && trusted[1 - me] > 0 -> two_believers = true
  :: else
  fi
}

/* Not a word of the store's: its call is given up, and may still be on its way, or done and unheard of. */
inline give_up(me) {
  if
  :: call[me] == ACQUIRE -> late_acquire[owner[me]] = 1
  :: call[me] == RENEW -> late_renew[owner[me]] = 1
  :: else
  fi;
  call[me] = NO_CALL; answer[me] = NO_ANSWER; since[me] = 0
}

inline end_of_call(me) {
  answer[me] = NO_ANSWER; since[me] = 0
}

proctype Client(bit me; byte next_owner; byte last_owner) {
  bit renewing;

  do
  :: next_owner <= last_owner ->
       d_step {
         owner[me] = next_owner; next_owner++;
         call[me] = ACQUIRE; since[me] = TTL
       };
       if
       :: d_step { answer[me] == NO -> end_of_call(me) }
       :: d_step { answer[me] == YES -> believe(me); end_of_call(me) }
       /* Unknown is not no: a late grant would be held by nobody, so a release that names its owner is sent behind. */
       :: d_step { give_up(me); token[me] = 0; releasing[owner[me]] = 1 }
       fi;

       /* A holder. Its renewals go out beside its writes, as those of a keeper beside the guarded code do. */
       do
       :: d_step { trusted[me] > 0 && writing[me] == 0 -> writing[me] = token[me] }
       :: d_step { trusted[me] > 0 && !renewing -> renewing = 1; call[me] = RENEW; since[me] = TTL }
       :: d_step { renewing && answer[me] == YES ->
            renewing = 0;
            /* A lease that was lost is not held again, whatever comes for it later. */
            if
            :: trusted[me] > 0 || REVIVE -> believe(me)
            :: else
            fi;
            end_of_call(me) }
       :: d_step { renewing && answer[me] == NO -> renewing = 0; trusted[me] = 0; end_of_call(me) }
       :: d_step { renewing -> renewing = 0; give_up(me) }
       /* It gives the lease back, or finds that its deadline has passed: its belief ends before the release is sent. */
       :: d_step { !renewing && token[me] != 0 -> trusted[me] = 0; token[me] = 0; releasing[owner[me]] = 1 }
       :: !renewing && token[me] == 0 -> break
       od;
       atomic { owner[me] = NOBODY }
  :: else -> break
  od
}

/*
 * Looks at the facts at any moment. The false yes can be left out (ANSWERS_UNCHECKED), for RENEW_BY_ANYONE to show what it
 * does to the clients' belief.
 */
active proctype Facts() {
  do
  :: atomic { regressed -> assert(!regressed) }
  :: atomic { two_believers -> assert(!two_believers) }
  :: atomic { token_reused -> assert(!token_reused) }
#ifndef ANSWERS_UNCHECKED
  :: atomic { false_yes -> assert(!false_yes) }
#endif
  od
}

init {
  atomic { run Clock(); run Network(); run Client(0, 1, 2); run Client(1, 3, 3) }
}
