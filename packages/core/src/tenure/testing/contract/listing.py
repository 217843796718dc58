"""ListsLocks: who holds what, and nothing that is over."""

from tenure.store import ListsLocks, LockRecord
from tenure.testing.contract.bench import LONG_MS, Bench
from tenure.testing.contract.case import Rung

__all__ = ["RUNG"]

RUNG = Rung(2, capability=ListsLocks)


async def _keys(bench: Bench, prefix: str) -> list[str]:
    return [record.key for record in await bench.store.list_locks(prefix)]


@RUNG.case(
    "A listing names each live lock of the prefix, in the order of keys",
    race="Whoever looks for a stuck job before a deploy does not find it.",
)
async def lists_the_live(bench: Bench) -> None:
    labels = ("b", "a", "B", "\u00e9", "a:owner", "\U0001f408")
    for label in labels:
        await bench.take(bench.key(label))
    expected = sorted(bench.key(label) for label in labels)
    bench.equal(await _keys(bench, bench.key("")), expected, what="the keys of list_locks(prefix)")
    everything = set(await _keys(bench, ""))
    bench.require(everything >= set(expected), "list_locks() of no prefix left out live locks", "all of them")
    default = {record.key for record in await bench.store.list_locks()}
    bench.require(default >= set(expected), "list_locks() left out live locks", "all of them")


@RUNG.case(
    "A listed lock tells its owner, its token and what is left of it, and keeps the owner out of its repr",
    race="An operator steps down the wrong instance, or pastes an owner into a ticket.",
)
async def records_are_true(bench: Bench) -> None:
    key, owner = bench.key(), bench.owner()
    granted = await bench.take(key, owner)
    (record,) = await bench.store.list_locks(key)
    bench.require(isinstance(record, LockRecord), f"list_locks() gave a {type(record).__name__}", "LockRecord")
    bench.require(record.owner == owner, "a listed lock names another owner", "the one who holds it")
    bench.equal(record.token, granted.token, what="the token of a listed lock")
    bench.require(
        type(record.expires_in_ms) is int and LONG_MS / 2 < record.expires_in_ms <= LONG_MS + 1,
        f"a listed fresh lock of {LONG_MS} ms has {record.expires_in_ms!r} ms left",
        "nearly all of it, an int",
    )
    bench.require(owner not in repr(record), "the repr of a listed lock holds its owner", "without it")


@RUNG.case(
    "A listing leaves out what was released",
    race="An operator waits for a holder that has long gone.",
)
async def leaves_out_the_released(bench: Bench) -> None:
    owner = bench.owner()
    await bench.take(bench.key("held"))
    await bench.take(bench.key("released"), owner)
    await bench.store.release(bench.key("released"), owner)
    bench.equal(await _keys(bench, bench.key("")), [bench.key("held")], what="list_locks() after a release")


@RUNG.case(
    "A listing leaves out what has expired, although nobody deleted it",
    race="A crashed instance is shown as holding its job, and nobody restarts it.",
    waits=True,
)
async def leaves_out_the_expired(bench: Bench) -> None:
    await bench.take(bench.key("held"))
    await bench.take(bench.key("expired"), ttl_ms=bench.short_ms)
    await bench.outlast(bench.short_ms)
    bench.equal(await _keys(bench, bench.key("")), [bench.key("held")], what="list_locks() after an expiry")


@RUNG.case(
    "A prefix is compared exactly: wildcards are plain characters, case counts, and it begins the key",
    rule=6,
    race="A prefix with an underscore lists the jobs of another tenant.",
)
async def prefix_is_exact(bench: Bench) -> None:
    for label in ("a_b", "axb", "a%b", "ab", "a\\_b", "a*b", "a?b", "a[x]b", "A_b", "x:a_b"):
        await bench.take(bench.key(label))
    for label in ("a_", "a%", "a\\", "a*", "a?", "a[x]", "A", "x"):
        found = await _keys(bench, bench.key(label))
        matching = [one for one in found if not one.startswith(bench.key(label))]
        bench.equal(matching, [], what=f"the keys beyond the prefix that list_locks({label!r}) found")
        bench.equal(len(found), 1, what=f"the number of keys that list_locks({label!r}) found")
    bench.equal(await _keys(bench, bench.key("a_")[1:]), [], what="list_locks() of a text inside the keys")
