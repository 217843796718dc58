"""Rule 5: fencing tokens are positive integers below 2**53, and grow per key for ever."""

from tenure.store import MAX_TOKEN, Acquired
from tenure.testing.contract.bench import LONG_MS, Bench
from tenure.testing.contract.case import Rung

__all__ = ["RUNG"]

RUNG = Rung(5)


@RUNG.case(
    "A token is an int",
    race="A bigint read as text compares as text: '9' is fresher than '10', and the fence lets the stale write in.",
)
async def token_is_an_int(bench: Bench) -> None:
    for label in ("first", "second"):
        token = (await bench.take(bench.key(label))).token
        bench.require(
            type(token) is int, f"a token of type {type(token).__name__} was given", "an int (a bool is none)"
        )


@RUNG.case(
    "A token is from 1 to 2**53 - 1",
    race="A JSON reader or a Lua number rounds two tokens to one; a fence that starts at 0 lets no writer in.",
)
async def token_is_in_range(bench: Bench) -> None:
    for label in ("first", "second"):
        token = int((await bench.take(bench.key(label))).token)
        bench.require(1 <= token <= MAX_TOKEN, f"the token {token} was given", "from 1 to 2**53 - 1")


@RUNG.case(
    "Tokens grow across a release",
    race="A's write is late, B holds the same token, and the fence cannot tell them apart.",
)
async def tokens_grow_across_a_release(bench: Bench) -> None:
    key, owner = bench.key(), bench.owner()
    first = await bench.take(key, owner)
    await bench.store.release(key, owner)
    bench.grows(first.token, (await bench.take(key)).token, "a release")


@RUNG.case(
    "Tokens grow across an expiry",
    race="A paused holder wakes with the token of the one that took over, and its stale write is let in.",
    waits=True,
)
async def tokens_grow_across_an_expiry(bench: Bench) -> None:
    key = bench.key()
    first = await bench.take(key, ttl_ms=bench.short_ms)
    await bench.outlast(bench.short_ms)
    bench.grows(first.token, (await bench.take(key)).token, "an expiry")


@RUNG.case(
    "Tokens grow with every one of many acquisitions",
    race="The counter is kept in what a release deletes, or wraps, and an old token comes back.",
    waits=True,
)
async def tokens_grow_for_ever(bench: Bench) -> None:
    keys = bench.key("one"), bench.key("two")
    last = dict.fromkeys(keys, 0)
    for turn in range(20):
        for key in keys:
            owner = bench.owner()
            token = (await bench.take(key, owner, what=f"acquire() {turn + 1} of a released key")).token
            bench.grows(last[key], token, f"{turn} acquisitions")
            last[key] = token
            await bench.store.release(key, owner)
        if turn == 10:
            for key in keys:
                last[key] = (await bench.take(key, ttl_ms=bench.short_ms)).token
            await bench.outlast(bench.short_ms)


@RUNG.case(
    "A refused acquire leaves the holder's token as it is",
    race="A waiter polls, the recorded token grows past the holder's, and the fence refuses the one who holds.",
)
async def refusal_keeps_the_token(bench: Bench) -> None:
    key, owner = bench.key(), bench.owner()
    first = await bench.take(key, owner)
    for _ in range(3):
        await bench.find_held(key)
    bench.equal((await bench.take(key, owner)).token, first.token, what="the holder's token after three refusals")


@RUNG.case(
    "A renewal leaves the holder's token as it is",
    race="The recorded token grows past the one that the holder writes with.",
)
async def renewal_keeps_the_token(bench: Bench) -> None:
    key, owner = bench.key(), bench.owner()
    first = await bench.take(key, owner)
    await bench.store.renew(key, owner, LONG_MS)
    bench.equal((await bench.take(key, owner)).token, first.token, what="the holder's token after a renewal")


@RUNG.case(
    "Tokens grow across a restart of the server",
    race="The counter was in memory: after the restart, a writer from before it passes every fence.",
    restarts=True,
)
async def tokens_grow_across_a_restart(bench: Bench) -> None:
    released, live, owner = bench.key("released"), bench.key("live"), bench.owner()
    for _ in range(2):
        await bench.take(released, owner)
        await bench.store.release(released, owner)
    last = await bench.take(released, owner)
    await bench.store.release(released, owner)
    held = await bench.take(live, owner)
    await bench.restart()
    bench.grows(last.token, (await bench.take(released)).token, "a restart")
    again = await bench.acquire(live, owner)
    bench.require(
        isinstance(again, Acquired) and again.token >= held.token,
        f"after a restart, the owner of a live lock with token {held.token!r} got {again!r}",
        "the same lock, or a new one with a greater token",
    )
