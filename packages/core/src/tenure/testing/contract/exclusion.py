"""Rule 1: each method is one atomic step on its key, and of any number of callers one wins."""

import asyncio

from tenure.store import Acquired, Held
from tenure.testing.contract.bench import Bench
from tenure.testing.contract.case import Rung

__all__ = ["RUNG"]

RUNG = Rung(1)


@RUNG.case(
    "A free key goes to who asks for it",
    race="Nobody runs the job, on any instance, for ever.",
)
async def free_key_is_granted(bench: Bench) -> None:
    await bench.take(bench.key(), what="acquire() of a key that nobody has locked")


@RUNG.case(
    "A held key is refused to another owner, however often it asks",
    race="An instance polls for a job that runs elsewhere, is let in at last, and two run it.",
)
async def held_key_is_refused(bench: Bench) -> None:
    key, waiter = bench.key(), bench.owner()
    await bench.take(key)
    for attempt in range(1, 6):
        reply = await bench.acquire(key, waiter)
        bench.require(
            isinstance(reply, Held),
            f"the waiter's attempt {attempt} on a held key gave {reply!r}",
            "Held",
        )


@RUNG.case(
    "A lock on one key holds up no other key",
    race="A long stock count keeps the nightly export from running.",
)
async def keys_are_independent(bench: Bench) -> None:
    owner = bench.owner()
    for label in ("first", "second", "third"):
        await bench.take(bench.key(label), owner, what="acquire() of a free key by an owner that holds others")
    await bench.store.release(bench.key("first"), owner)
    await bench.find_held(bench.key("second"), what="acquire() of a held key after its owner released another one")


@RUNG.case(
    "Of two callers that ask at the same moment, one wins",
    race="Both read that the key is free, then both write that it is theirs.",
)
async def one_of_two_wins(bench: Bench) -> None:
    for attempt in range(5):
        key = bench.key(str(attempt))
        replies = await asyncio.gather(bench.acquire(key, bench.owner()), bench.acquire(key, bench.owner()))
        wins = sum(isinstance(reply, Acquired) for reply in replies)
        bench.require(wins == 1, f"{wins} of two simultaneous callers got the key", "one")
