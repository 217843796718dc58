"""Rule 6: keys are compared exactly, and refused before any call where some store could not keep them apart."""

from tenure.store import Acquired
from tenure.testing.contract.bench import LONG_MS, Bench
from tenure.testing.contract.case import Rung

__all__ = ["RUNG"]

RUNG = Rung(6)

_LONGEST = 500
_LONGEST_OWNER = 200
_CAT = "\U0001f408"  # four bytes in UTF-8, two units in UTF-16


async def _are_apart(bench: Bench, *keys: str) -> None:
    """Require each of *keys* to be a lock of its own, from acquire to release."""
    owners = {key: bench.owner() for key in keys}
    for key, owner in owners.items():
        reply = await bench.acquire(key, owner)
        bench.require(
            isinstance(reply, Acquired),
            f"acquire() of {_shown(key)} beside its near namesakes gave {reply!r}",
            "Acquired",
        )
    for key in keys:
        await bench.find_held(key, what=f"acquire() of {_shown(key)}, held,")
    for place, key in enumerate(keys):
        renewed = await bench.store.renew(key, owners[key], LONG_MS)
        bench.equal(renewed, True, what=f"renew() of {_shown(key)} by its owner")
        released = await bench.store.release(key, owners[key])
        bench.equal(released, True, what=f"release() of {_shown(key)} by its owner")
        for other in keys[place + 1 :]:
            await bench.find_held(other, what=f"acquire() of {_shown(other)} after the release of {_shown(key)}")


def _shown(key: str) -> str:
    return ascii(key if len(key) <= 80 else f"{key[:40]}...{key[-20:]}")


@RUNG.case(
    "Keys that differ in case are two locks",
    race="A column of a collation that folds case lets one job keep another from running.",
)
async def case_is_kept(bench: Bench) -> None:
    await _are_apart(bench, bench.key("Invoices"), bench.key("invoices"), bench.key("INVOICES"))


@RUNG.case(
    "Keys that differ in spaces at their ends are two locks",
    race="A padded column, or a strip() in the store, makes two locks one.",
)
async def spaces_are_kept(bench: Bench) -> None:
    plain = bench.key("spaces")
    await _are_apart(bench, plain, plain + " ", " " + plain, plain + "\t", plain + "\n", plain + "\u00a0")


@RUNG.case(
    "Keys that differ in their normal form are two locks",
    race="One store composes letters and another does not: they disagree on whether a key is held.",
)
async def normal_forms_are_apart(bench: Bench) -> None:
    composed, decomposed = bench.key("caf\u00e9"), bench.key("cafe\u0301")
    await _are_apart(bench, composed, decomposed, bench.key("\ufb01le"), bench.key("file"))


@RUNG.case(
    "Keys that a collation takes for equal are two locks",
    race="A linguistic collation ignores accents and joiners: uniqueness is then looser than equality.",
)
async def collation_is_exact(bench: Bench) -> None:
    spellings = ("strasse", "stra\u00dfe", "resume", "r\u00e9sum\u00e9", "co\u00adop", "coop", "a\u200db", "ab")
    await _are_apart(bench, *(bench.key(spelling) for spelling in spellings))


@RUNG.case(
    "Keys of braces, percent signs, quotes and wildcards are data",
    race="A brace chooses another cluster slot, a quote ends a literal, and %7B is read as {.",
)
async def marks_are_data(bench: Bench) -> None:
    marks = (
        "{a}",
        "a",
        "{a",
        "a}",
        "{}",
        "%7Ba%7D",
        "%",
        "%%",
        "*",
        "?",
        "[a]",
        "\\",
        "\\\\",
        "'",
        "''",
        '"',
        "--",
        ";",
    )
    await _are_apart(bench, *(bench.key(mark) for mark in marks))


@RUNG.case(
    "Keys that look like numbers or nothing are text",
    race="The driver guesses a type: 1, 01 and 1.0 are one lock, and null is none.",
)
async def keys_are_text(bench: Bench) -> None:
    await _are_apart(
        bench, *(bench.key(text) for text in ("1", "01", "1.0", "1e0", "null", "NULL", "None", "", "true"))
    )


@RUNG.case(
    "A key and its neighbours with a suffix are kept apart",
    race="The store keeps a key's fence under the key with a suffix, where another lock lives.",
)
async def neighbours_are_apart(bench: Bench) -> None:
    plain = bench.key("job")
    suffixes = (":owner", "@2026-01-01T00:00:00Z", ":fence", ":token", ":lock", ":", "::", "/", ".")
    await _are_apart(bench, plain, *(plain + suffix for suffix in suffixes), bench.key("jo"), bench.key("jobs"))


@RUNG.case(
    "Keys of 500 characters beyond the basic plane are kept whole",
    race="A column or an index cuts the key: all tenants with a long prefix share one lock.",
)
async def long_keys_are_whole(bench: Bench) -> None:
    stem = bench.key("").ljust(_LONGEST - 1, _CAT)
    await _are_apart(bench, stem + _CAT, stem + "\U0001f431", stem)


@RUNG.case(
    "A key outside the rules is refused before any call",
    race="One store takes what another refuses, cuts or cannot read back: moving between them splits a lock.",
)
async def bad_keys_are_refused(bench: Bench) -> None:
    bad: dict[str, object] = {
        "an empty key": "",
        "a key of 501 characters": bench.key("").ljust(_LONGEST + 1, "x"),
        "a key with NUL": bench.key("a\0b"),
        "a key with a lone surrogate": bench.key("\ud800"),
        "bytes": bench.key().encode(),
        "None": None,
        "a number": 7,
    }
    for what, key in bad.items():
        await bench.refuses(bench.store.acquire(key, bench.owner(), bench.short_ms), what=f"acquire() of {what}")
        await bench.refuses(bench.store.renew(key, bench.owner(), bench.short_ms), what=f"renew() of {what}")
        await bench.refuses(bench.store.release(key, bench.owner()), what=f"release() of {what}")


@RUNG.case(
    "An owner outside the rules is refused before any call, in words that do not hold it",
    race="An owner that reads back cut is nobody's: its lock cannot be given back. Its text in a log is a key to it.",
)
async def bad_owners_are_refused(bench: Bench) -> None:
    key, secret = bench.key(), bench.owner()
    bad: dict[str, object] = {
        "an empty owner": "",
        "an owner of 201 characters": secret.ljust(_LONGEST_OWNER + 1, "x"),
        "an owner with NUL": f"{secret}\0",
        "an owner with a lone surrogate": f"{secret}\udfff",
        "an owner of bytes": secret.encode(),
        "no owner": None,
    }
    for what, owner in bad.items():
        for name, *arguments in (("acquire", bench.short_ms), ("renew", bench.short_ms), ("release",)):
            call = getattr(bench.store, str(name))(key, owner, *arguments)
            await bench.refuses(call, what=f"{name}() by {what}", secret=secret)
    await bench.take(key, secret.ljust(_LONGEST_OWNER, _CAT), what="acquire() by an owner of 200 characters")
