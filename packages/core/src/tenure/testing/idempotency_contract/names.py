"""Rule 9: keys and fingerprints are compared exactly, and refused before any call where some store could not."""

from collections.abc import Awaitable, Callable

from tenure._idempotency_machine import RecordState
from tenure.idempotency_store import Acquired, Mismatch
from tenure.testing.idempotency_contract.bench import LONG_MS, PAYLOAD, RecordBench
from tenure.testing.idempotency_contract.case import Rung, Script

__all__ = ["RUNG"]

RUNG = Rung(9)

_LONGEST = 500
_LONGEST_OWNER = 200
_CAT = "\U0001f408"  # four bytes in UTF-8, two units in UTF-16
_OTHER_CAT = "\U0001f431"

_SPACES = ("spaces", "spaces ", " spaces", "spaces\t", "spaces\n", "spaces\u00a0")
_CASES = ("Orders", "orders", "ORDERS")
_FORMS = ("caf\u00e9", "cafe\u0301", "\ufb01le", "file")
_COLLATED = ("strasse", "stra\u00dfe", "resume", "r\u00e9sum\u00e9", "co\u00adop", "coop", "a\u200db", "ab")
_MARKS = ("{a}", "a", "{a", "a}", "{}", "%7Ba%7D", "%", "%%", "*", "?", "[a]", "\\", "\\\\", "'", "''", '"', "--", ";")
_NUMBERS = ("1", "01", "1.0", "1e0", "null", "NULL", "None", "true")


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 80 else f"{text[:40]}...{text[-20:]}")


async def _are_apart(bench: RecordBench, *keys: str) -> None:
    """Require each of *keys* to be a record of its own, from acquire to release and to the outcome."""
    owners = {key: bench.owner() for key in keys}
    for key, owner in owners.items():
        await bench.begin(key, owner, what=f"acquire() of {_shown(key)} beside its near namesakes")
    for place, (key, owner) in enumerate(owners.items()):
        if place % 2:
            released = await bench.store.release(key, owner)
            bench.equal(released, True, what=f"release() of {_shown(key)} by its owner")
        else:
            extended = await bench.store.extend(key, owner, LONG_MS)
            bench.equal(extended, True, what=f"extend() of {_shown(key)} by its owner")
            await bench.completes(key, owner, str(place).encode(), what=f"complete() of {_shown(key)} by its owner")
        for other in keys[place + 1 :]:
            await bench.find_in_flight(other, what=f"acquire() of {_shown(other)} after {_shown(key)} was settled")
    for place, (key, owner) in enumerate(owners.items()):
        if not place % 2:
            await bench.find_completed(key, str(place).encode(), owner, what=f"acquire() of {_shown(key)}, completed,")


def _keys_are_apart(name: str, labels: tuple[str, ...], race: str) -> Script:
    @RUNG.case(name, race=race)
    async def apart(bench: RecordBench) -> None:
        await _are_apart(bench, *(bench.key(label) for label in labels))

    return apart


case_is_kept = _keys_are_apart(
    "Keys that differ in case are two records",
    _CASES,
    "A column of a collation that folds case gives one client another's response.",
)
spaces_are_kept = _keys_are_apart(
    "Keys that differ in spaces at their ends are two records",
    _SPACES,
    "A padded column, or a strip() in the store, makes two requests one.",
)
normal_forms_are_apart = _keys_are_apart(
    "Keys that differ in their normal form are two records",
    _FORMS,
    "One store composes letters and another does not: they disagree on whether a request was sent before.",
)
collation_is_exact = _keys_are_apart(
    "Keys that a collation takes for equal are two records",
    _COLLATED,
    "A linguistic collation ignores accents and joiners: uniqueness is then looser than equality.",
)
marks_are_data = _keys_are_apart(
    "Keys of braces, percent signs, quotes and wildcards are data",
    _MARKS,
    "A brace chooses another cluster slot, a quote ends a literal, and %7B is read as {.",
)
keys_are_text = _keys_are_apart(
    "Keys that look like numbers or nothing are text",
    (*_NUMBERS, ""),
    "The driver guesses a type: 1, 01 and 1.0 are one record, and null is none.",
)


@RUNG.case(
    "Keys of 500 characters beyond the basic plane are kept whole",
    race="A column or an index cuts the key: all tenants with a long prefix share one record.",
)
async def long_keys_are_whole(bench: RecordBench) -> None:
    stem = bench.key("").ljust(_LONGEST - 1, _CAT)
    await _are_apart(bench, stem + _CAT, stem + _OTHER_CAT, stem)


async def _payloads_are_apart(bench: RecordBench, fingerprints: tuple[str, ...]) -> None:
    """Require each of *fingerprints* to be a payload of its own."""
    for number, fingerprint in enumerate(fingerprints):
        key = bench.key(f"{number} of {len(fingerprints)}")
        owner = await bench.begin(key, None, fingerprint, what="acquire() of an absent record with a strange payload")
        await bench.begin(key, owner, fingerprint, what="acquire() by the owner with its payload again")
        for other in fingerprints:
            if other != fingerprint:
                reply = await bench.look(key, other)
                what = f"acquire() with the payload {_shown(other)} of a record of {_shown(fingerprint)}"
                bench.equal(reply, Mismatch(RecordState.IN_FLIGHT), what=what)
        await bench.completes(key, owner)
        reply = await bench.look(key, fingerprint)
        what = f"acquire() of a completed record with its payload {_shown(fingerprint)}"
        bench.require_completed(reply, b"done", owner, what=what)


@RUNG.case(
    "Payloads are compared exactly: case, spaces, normal forms and marks",
    race="Two requests that a collation takes for equal are one: the second is answered with the first's response.",
)
async def payloads_are_exact(bench: RecordBench) -> None:
    await _payloads_are_apart(bench, (*_CASES, *_SPACES, *_FORMS))
    await _payloads_are_apart(bench, (*_COLLATED[:6], *_MARKS[:6], *_NUMBERS))


@RUNG.case(
    "Fingerprints of 200 characters beyond the basic plane are compared whole",
    race="A column cuts the digest: two payloads whose digests begin alike are one.",
)
async def long_payloads_are_whole(bench: RecordBench) -> None:
    stem = _CAT * (_LONGEST_OWNER - 1)
    await _payloads_are_apart(bench, (stem + _CAT, stem + _OTHER_CAT, stem))


@RUNG.case(
    "Owners of 200 characters beyond the basic plane are kept whole",
    race="An owner that reads back cut is nobody's: its execution cannot store what it did.",
)
async def long_owners_are_whole(bench: RecordBench) -> None:
    key = bench.key()
    stem = bench.owner().ljust(_LONGEST_OWNER - 1, _CAT)
    await bench.begin(key, stem + _CAT, what="acquire() by an owner of 200 characters")
    bench.equal(await bench.store.extend(key, stem + _OTHER_CAT, 1000), False, what="extend() by a near namesake")
    await bench.completes(key, stem + _CAT, what="complete() by an owner of 200 characters")
    await bench.find_completed(key, b"done", stem + _CAT, what="acquire() after that")


def _calls(bench: RecordBench, key: object, owner: object) -> dict[str, Callable[[], Awaitable[object]]]:
    store = bench.store
    return {
        "acquire()": lambda: store.acquire(key, owner, PAYLOAD, bench.short_ms, bench.short_ms),
        "extend()": lambda: store.extend(key, owner, bench.short_ms),
        "complete()": lambda: store.complete(key, owner, b"done", bench.short_ms),
        "release()": lambda: store.release(key, owner),
    }


@RUNG.case(
    "A key outside the rules is refused before any call",
    race="One store takes what another refuses, cuts or cannot read back: moving between them repeats a request.",
)
async def bad_keys_are_refused(bench: RecordBench) -> None:
    bad: dict[str, object] = {
        "an empty key": "",
        "a key of 501 characters": bench.key("").ljust(_LONGEST + 1, "x"),
        "a key with NUL": bench.key("a\0b"),
        "a key with a lone surrogate": bench.key("\ud800"),
        "a key of bytes": bench.key().encode(),
        "no key": None,
        "a number for a key": 7,
    }
    for what, key in bad.items():
        for name, call in _calls(bench, key, bench.owner()).items():
            await bench.refuses(call(), what=f"{name} of {what}")


def _bad(secret: str, what: str) -> dict[str, object]:
    return {
        f"an empty {what}": "",
        f"{what} of 201 characters": secret.ljust(_LONGEST_OWNER + 1, "x"),
        f"{what} with NUL": f"{secret}\0",
        f"{what} with a lone surrogate": f"{secret}\udfff",
        f"{what} of bytes": secret.encode(),
        f"no {what}": None,
    }


@RUNG.case(
    "An owner outside the rules is refused before any call, in words that do not hold it",
    race="An owner that reads back cut is nobody's. Its text in a log is a key to the record.",
)
async def bad_owners_are_refused(bench: RecordBench) -> None:
    key, secret = bench.key(), bench.owner()
    for what, owner in _bad(secret, "owner").items():
        for name, call in _calls(bench, key, owner).items():
            await bench.refuses(call(), what=f"{name} by {what}", secret=secret)
    await bench.find_absent(key, what="acquire() after calls that were refused")


@RUNG.case(
    "A fingerprint outside the rules is refused before any call, in words that do not hold it",
    race="A payload that is empty, or cut, is every payload: mismatches are not seen.",
)
async def bad_payloads_are_refused(bench: RecordBench) -> None:
    key, owner, secret = bench.key(), bench.owner(), bench.owner()
    for what, fingerprint in _bad(secret, "fingerprint").items():
        call = bench.store.acquire(key, owner, fingerprint, LONG_MS, LONG_MS)
        await bench.refuses(call, what=f"acquire() with {what}", secret=secret)
    reply = await bench.acquire(key, owner)
    bench.equal(reply, Acquired(1), what="acquire() after calls that were refused")
