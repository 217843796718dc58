"""Rule 8: the response is opaque bytes, stored with the state in one write; the fingerprint stays beside it."""

from tenure._idempotency_machine import RecordState
from tenure.idempotency_store import Completed, InFlight
from tenure.testing.idempotency_contract.bench import OTHER_PAYLOAD, RecordBench
from tenure.testing.idempotency_contract.case import Rung, Script

__all__ = ["RUNG"]

RUNG = Rung(8)


def _case(name: str, *responses: bytes, race: str) -> Script:
    @RUNG.case(name, race=race)
    async def kept(bench: RecordBench) -> None:
        for number, response in enumerate(responses):
            key = bench.key(str(number))
            owner = await bench.begin(key)
            await bench.completes(key, owner, response)
            for _ in range(2):
                await bench.find_completed(key, response, owner, what=f"a replay of response {number}")

    return kept


empty_is_kept = _case(
    "An empty response is a response",
    b"",
    race="A 204 without a body is read back as none: the repetition runs again, or waits for ever.",
)
nul_is_kept = _case(
    "A response with NUL is kept whole",
    b"\0",
    b"a\0b",
    b"\0\0",
    b"done\0",
    race="A column of text refuses it, or cuts it: the client is given half a body.",
)
every_byte_is_kept = _case(
    "Every byte is kept as it is",
    bytes(range(256)),
    bytes(range(255, -1, -1)),
    b"\xff\xfe\x00",
    b"\xc3\x28",
    "caf\u00e9".encode("latin-1"),
    race="The store decodes and encodes: an image, or a sealed response, does not open any more.",
)
looks_are_nothing = _case(
    "A response that looks like something else is bytes",
    b"null",
    b"1",
    b"{}",
    b'{"b": 1, "a": 1.0}',
    b"\\x00",
    b"\\000",
    b" \r\n ",
    b"'); --",
    b"%s",
    b"OK",
    race="The store parses it and writes it anew: the replay is not what the first client was given.",
)
large_is_kept = _case(
    "A response of a mebibyte is kept whole",
    bytes(range(256)) * 4096,
    race="A large response is cut, or refused after the effect.",
)


@RUNG.case(
    "A completed record keeps its payload's fingerprint",
    race="C8. The completion writes the row anew without it: identical repetitions are refused, or any is answered.",
)
async def fingerprint_is_kept(bench: RecordBench) -> None:
    key = bench.key()
    owner = await bench.begin(key)
    await bench.completes(key, owner)
    await bench.find_completed(key, b"done", owner, what="acquire() of a completed record with its payload")
    await bench.find_mismatch(key, RecordState.COMPLETED, what="acquire() of a completed record with another payload")
    other = bench.key("other")
    owner = await bench.begin(other, None, OTHER_PAYLOAD)
    await bench.completes(other, owner)
    reply = await bench.look(other, OTHER_PAYLOAD)
    bench.require_completed(reply, b"done", owner, what="acquire() of another record with its own payload")


@RUNG.case(
    "Each record has its own response",
    race="The response is kept by what it answers, or by who answered: a client is given another's.",
)
async def responses_are_apart(bench: RecordBench) -> None:
    owner = bench.owner()
    keys = {bench.key(label): label.encode() for label in ("first", "second", "third")}
    for key, response in keys.items():
        await bench.begin(key, owner)
        await bench.completes(key, owner, response)
    for key, response in keys.items():
        await bench.find_completed(key, response, owner, what="acquire() of one of three records of one owner")


@RUNG.case(
    "An outcome names who completed it",
    race="A sealed response is bound to its owner: under another name it does not open.",
    waits=True,
)
async def owner_is_named(bench: RecordBench) -> None:
    key = bench.key()
    await bench.abandon(key)
    owner = await bench.begin(key, attempt=2, what="acquire() of an abandoned execution")
    await bench.completes(key, owner)
    await bench.find_completed(key, b"done", owner, what="acquire() of what the second owner completed")


@RUNG.case(
    "A completion that is cut off writes everything or nothing",
    race="C7. The process dies between two writes: the response is there without its time, or the state without it.",
    waits=True,
)
async def complete_is_one_write(bench: RecordBench) -> None:
    response = bytes(range(256)) * 8
    # One turn of the loop more each time, so that the cancellation comes before, during and after the step.
    owners = {bench.key(str(turns)): bench.owner() for turns in range(8)}
    for turns, (key, owner) in enumerate(owners.items()):
        await bench.begin(key, owner, lock_ms=bench.ttl_ms)
        await bench.cancelled(bench.store.complete(key, owner, response, bench.ttl_ms), turns)
        reply = await bench.look(key)
        if isinstance(reply, Completed):
            bench.require_completed(reply, response, owner, what="acquire() after a completion that was cut off")
        else:
            bench.require(
                isinstance(reply, InFlight), f"after a completion cut off, acquire() gave {reply!r}", "InFlight"
            )
        await bench.completes(key, owner, response, retention_ms=bench.ttl_ms, what="complete() again after that")
        await bench.find_completed(key, response, owner, what="acquire() after a completion that was sent again")
    await bench.outlast(bench.ttl_ms)
    for key in owners:
        await bench.find_absent(key, what="acquire() after the retention of a completion that was cut off")
