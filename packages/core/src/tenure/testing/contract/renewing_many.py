"""RenewsMany: many renewals in one call are the same renewals."""

from collections.abc import Sequence

from tenure.store import Claim, RenewsMany
from tenure.testing.contract.bench import LONG_MS, Bench
from tenure.testing.contract.case import Rung

__all__ = ["RUNG"]

RUNG = Rung(3, capability=RenewsMany)


@RUNG.case(
    "Many renewals are answered as single ones would be, each in its place",
    race="An answer lands on another lease: one that is lost believes, and one that holds stops.",
    waits=True,
)
async def answers_are_in_place(bench: Bench) -> None:
    mine, others = bench.owner(), bench.owner()
    for label in ("z-mine", "b-mine", "released"):
        await bench.take(bench.key(label), mine)
    await bench.take(bench.key("expired"), mine, bench.short_ms)
    await bench.take(bench.key("another's"), others)
    await bench.store.release(bench.key("released"), mine)
    await bench.outlast(bench.short_ms)
    # Out of the order of keys, and a refusal before every grant: neither may move or stop the rest.
    expected = {
        "another's": False,
        "z-mine": True,
        "expired": False,
        "never": False,
        "b-mine": True,
        "released": False,
    }
    claims = [Claim(bench.key(label), mine, LONG_MS) for label in expected]
    _same(bench, await bench.store.renew_many(claims), list(expected.values()), what="renew_many() of six claims")


@RUNG.case(
    "Each of many renewals gets its own ttl",
    race="One ttl is taken for all: a short lease outlives its crashed holder, or a long one ends under it.",
    waits=True,
)
async def each_has_its_ttl(bench: Bench) -> None:
    owner = bench.owner()
    short, long = bench.key("short"), bench.key("long")
    await bench.take(short, owner)
    await bench.take(long, owner, bench.ttl_ms)
    claims = [Claim(long, owner, LONG_MS), Claim(short, owner, bench.short_ms)]
    _same(bench, await bench.store.renew_many(claims), [True, True], what="renew_many() of two live locks")
    await bench.outlast(bench.short_ms)
    await bench.find_free(short, what="acquire() after the short ttl of a renewal among many")
    await bench.outlast(bench.ttl_ms - bench.short_ms)
    await bench.find_held(long, what="acquire() after the first ttl of a lock renewed among many")


@RUNG.case(
    "A refused claim among many moves nobody's lock, and spoils no other renewal",
    race="One lease is lost, and with it all that were renewed in the same call.",
    waits=True,
)
async def refusal_stays_alone(bench: Bench) -> None:
    mine = bench.owner()
    await bench.take(bench.key("mine"), mine)
    await bench.take(bench.key("another's"), ttl_ms=bench.short_ms)
    claims = [Claim(bench.key(label), mine, LONG_MS) for label in ("another's", "mine")]
    _same(bench, await bench.store.renew_many(claims), [False, True], what="renew_many() with a stranger's claim")
    await bench.outlast(bench.short_ms)
    await bench.find_free(bench.key("another's"), what="acquire() after the ttl of a lock that a stranger claimed")
    await bench.find_held(bench.key("mine"), what="acquire() of a lock renewed beside a refused claim")


@RUNG.case(
    "Two claims on one key are each answered for their own owner",
    race="A lease that is lost and its successor here are renewed in one call, and one answer serves for both.",
)
async def one_key_twice(bench: Bench) -> None:
    key, owner = bench.key(), bench.owner()
    await bench.take(key, owner)
    for claims, expected in (
        ([Claim(key, bench.owner(), LONG_MS), Claim(key, owner, LONG_MS)], [False, True]),
        ([Claim(key, owner, LONG_MS), Claim(key, bench.owner(), LONG_MS)], [True, False]),
    ):
        _same(bench, await bench.store.renew_many(claims), expected, what="renew_many() of two claims on one key")


@RUNG.case("No claims get no answers", race="The keeper of an idle process sends an empty call, and dies of it.")
async def no_claims(bench: Bench) -> None:
    _same(bench, await bench.store.renew_many([]), [], what="renew_many() of no claims")


@RUNG.case(
    "A thousand claims get a thousand answers",
    race="A statement takes so many parameters and no more: the leases beyond the limit are lost together.",
)
async def a_thousand_claims(bench: Bench) -> None:
    owner = bench.owner()
    held = range(0, 1000, 111)
    for number in held:
        await bench.take(bench.key(str(number)), owner)
    claims = [Claim(bench.key(str(number)), owner, LONG_MS) for number in range(1000)]
    answers = list(await bench.store.renew_many(claims))
    bench.equal(len(answers), 1000, what="the number of answers to a thousand claims")
    renewed = [number for number, answer in enumerate(answers) if answer]
    bench.equal(renewed, list(held), what="the places of the renewals among a thousand claims")


@RUNG.case(
    "A claim outside the rules is refused before any call",
    rule=6,
    race="Many renewals take a key or a ttl that one renewal refuses.",
)
async def bad_claims_are_refused(bench: Bench) -> None:
    key, secret = bench.key(), bench.owner()
    await bench.take(key, secret)
    for what, claim in {
        "an empty key": Claim("", secret, LONG_MS),
        "a key with NUL": Claim(f"{key}\0", secret, LONG_MS),
        "an owner with NUL": Claim(key, f"{secret}\0", LONG_MS),
        "a ttl of 0": Claim(key, secret, 0),
        "a ttl of True": Claim(key, secret, True),
        "a ttl with a fraction": Claim(key, secret, 0.5),  # type: ignore[arg-type]  # that is the point
    }.items():
        bench.require(secret not in repr(claim), "the repr of a Claim holds its owner", "without it")
        call = bench.store.renew_many([claim])
        await bench.refuses(call, what=f"renew_many() of a claim with {what}", secret=secret)


def _same(bench: Bench, answers: Sequence[bool | None], expected: list[bool], *, what: str) -> None:
    """Require *answers* to be *expected*. None, "could not tell", has no cause here: nobody else is at these keys."""
    given = list(answers)
    bools = all(type(answer) is bool for answer in given)
    bench.require(bools and given == expected, f"{what} gave {given!r}", repr(expected))
