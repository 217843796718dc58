"""A store that fails: nothing runs without protection, and no client loses a response for it."""

import asyncio
import math
from typing import Any

import pytest

from tenure import ConfigurationError, LeaseStateError
from tenure.errors import StoreFullError
from tenure.idempotency import InMemoryIdempotencyStore, SealError
from tenure.idempotency_store import Completed


class DriverError(Exception):
    pass


@pytest.mark.parametrize(
    "error", [DriverError("password=x"), StoreFullError("full"), OSError("refused"), TimeoutError()]
)
async def test_without_the_store_nothing_runs_and_the_client_is_told_to_come_again(
    bench: Any, error: Exception
) -> None:
    handler = bench.Handler()
    app = bench.protect(handler)
    bench.store.on("acquire").fail(error)
    answer = await bench.ask(app)
    assert (answer.status, answer.code, handler.runs) == (503, "store-unavailable", 0)
    assert (answer.lines("retry-after"), answer.problem["retry_after"]) == (["1"], 1)
    assert b"password" not in answer.body
    bench.store.heal()
    assert (await bench.ask(app)).status == 201


async def test_a_mistake_in_the_program_is_no_outage(bench: Any) -> None:
    handler = bench.Handler()
    bench.store.on("acquire").fail(ConfigurationError("The table is missing."))
    with pytest.raises(ConfigurationError, match="table"):
        await bench.ask(bench.protect(handler))
    assert handler.runs == 0


async def test_a_store_that_does_not_answer_is_answered_503(bench: Any) -> None:
    handler = bench.Handler()
    bench.store.on("acquire").hang()
    asking = asyncio.create_task(bench.ask(bench.protect(handler)))
    await bench.store.called("acquire", times=1)
    await bench.clock.advance(60)
    answer = await asking
    assert (answer.status, answer.code, handler.runs) == (503, "store-unavailable", 0)


async def test_a_reply_that_the_contract_does_not_allow_is_no_grant(bench: Any) -> None:
    handler = bench.Handler()
    bench.store.on("acquire").answer("yes")
    assert (await bench.ask(bench.protect(handler))).code == "store-unavailable"
    assert handler.runs == 0


async def test_a_grant_whose_reply_was_lost_is_asked_for_again_and_runs(bench: Any) -> None:
    handler = bench.Handler()
    bench.store.on("acquire").lose_reply(times=1)
    answer = await bench.ask(bench.protect(handler))
    assert (answer.status, handler.attempts) == (201, [1])


async def test_a_completion_that_fails_costs_the_client_nothing_and_goes_on_behind_it(bench: Any) -> None:
    handler = bench.Handler()
    app = bench.protect(handler)
    bench.store.on("complete").fail(DriverError())
    first = await bench.ask(app)
    assert (first.status, first.body, first.ended) == (201, b"run 1", True)
    assert (await bench.ask(app)).code == "in-flight"
    await bench.clock.advance(bench.lock_ttl_s * 3)
    assert (await bench.ask(app)).code == "in-flight"
    bench.store.heal()
    await bench.clock.advance(6)
    assert ((await bench.ask(app)).replayed, handler.runs) == (True, 1)


@pytest.mark.parametrize("fault", ["lose_reply", "lose_request"])
async def test_a_completion_that_is_lost_once_is_stored_all_the_same(bench: Any, fault: str) -> None:
    handler = bench.Handler()
    app = bench.protect(handler)
    getattr(bench.store.on("complete"), fault)(times=1)
    assert (await bench.ask(app)).status == 201
    await bench.clock.advance(1)
    assert ((await bench.ask(app)).body, handler.runs) == (b"run 1", 1)


async def test_a_completion_that_hangs_delays_the_response_for_a_third_of_the_lock_at_most(bench: Any) -> None:
    bench.store.on("complete").hang()
    asking = asyncio.create_task(bench.ask(bench.protect(bench.Handler())))
    await bench.store.called("complete", times=1)
    await bench.clock.advance(bench.lock_ttl_s / 3 + 0.1)
    assert (await asking).status == 201


async def test_a_store_full_of_executions_refuses_a_new_one_and_forgets_none(bench: Any, make_bench: Any) -> None:
    full = make_bench()
    full.store.inner = InMemoryIdempotencyStore(full.clock, max_records=1)
    handler = full.Handler()
    handler.pause()
    async with full.idempotency:
        app = full.protect(handler)
        first = asyncio.create_task(full.ask(app))
        await handler.reached.wait()
        assert (await full.ask(app, key="k-2")).code == "store-unavailable"
        assert (await full.ask(app)).code == "in-flight"
        handler.proceed.set()
        assert (await first).status == 201
        assert (await full.ask(app)).replayed
    assert handler.runs == 1


async def test_a_release_that_fails_costs_the_client_nothing(bench: Any) -> None:
    handler = bench.Handler(status=503)
    bench.store.on("release").fail(DriverError())
    assert (await bench.ask(bench.protect(handler))).status == 503
    await bench.abandoned()
    handler.status = 201
    assert (await bench.ask(bench.protect(handler))).status == 201
    assert handler.attempts == [1, 2]


async def test_extensions_that_fail_do_not_touch_the_request(bench: Any) -> None:
    handler = bench.Handler()
    handler.pause()
    app = bench.protect(handler)
    bench.store.on("extend").fail(DriverError())
    first = asyncio.create_task(bench.ask(app))
    await handler.reached.wait()
    await bench.clock.advance(bench.lock_ttl_s / 2)
    bench.store.heal()
    await bench.clock.advance(bench.lock_ttl_s)
    assert (await bench.ask(app)).code == "in-flight"
    handler.proceed.set()
    assert (await first).status == 201
    assert (await bench.ask(app)).replayed


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x02",
        b"\x01\0\0\0\xff{}",
        b"\x01\0\0\0\x02{}",
        b"\x01\0\0\0\x02[]",
        b"\x01\0",
        b'\x01\0\0\0\x1d{"status": "1", "headers": []}',
        b'\x01\0\0\0\x1e{"status": 199, "headers": []}',
        b'\x01\0\0\0\x1e{"status": 600, "headers": []}',
        b'\x01\0\0\0\x2e{"status": 201, "headers": [["etag", "a\\nb"]]}',
        b'\x01\0\0\0\x2c{"status": 201, "headers": [["e tag", "a"]]}',
    ],
)
async def test_a_record_that_cannot_be_read_is_an_error_and_never_a_reason_to_run_again(
    bench: Any, payload: bytes
) -> None:
    handler = bench.Handler()
    bench.store.on("acquire").answer(Completed(b"\x01R" + payload, "other:1"))
    answer = await bench.ask(bench.protect(handler))
    assert (answer.status, answer.problem["type"], handler.runs) == (500, "about:blank", 0)


class Seal:
    """A sealer that opens what was sealed with the same word."""

    word = b"one"

    def seal(self, plain: bytes, *, bound_to: bytes) -> bytes:
        if self.word == b"broken":
            raise ValueError("no entropy")
        return self.word + bound_to + bytes(255 - octet for octet in plain)

    def open(self, sealed: bytes, *, bound_to: bytes) -> bytes:
        if not sealed.startswith(self.word + bound_to):
            raise SealError("It does not open.")
        return bytes(255 - octet for octet in sealed[len(self.word) + len(bound_to) :])


async def test_a_response_is_sealed_in_the_store_and_one_that_does_not_open_is_not_run_again(make_bench: Any) -> None:
    seal = Seal()
    bench = make_bench(sealer=seal)
    handler = bench.Handler(chunks=[b"token=secret"])
    async with bench.idempotency:
        app = bench.protect(handler)
        await bench.ask(app)
        assert (await bench.ask(app)).body == b"token=secret"
        (record,) = bench.memory._records.values()
        assert record.response is not None
        assert b"secret" not in record.response
        seal.word = b"two"
        answer = await bench.ask(app)
        assert (answer.status, answer.problem["type"], handler.runs) == (500, "about:blank", 1)


async def test_a_sealer_that_fails_costs_the_client_nothing(make_bench: Any, caplog: Any) -> None:
    seal = Seal()
    seal.word = b"broken"
    bench = make_bench(sealer=seal)
    async with bench.idempotency:
        answer = await bench.ask(bench.protect(bench.Handler()))
        assert (answer.status, answer.body) == (201, b"run 1")
    assert "ValueError" in caplog.text
    assert "entropy" not in caplog.text


async def test_before_its_start_a_request_with_a_key_is_a_mistake_to_be_seen(make_bench: Any) -> None:
    bench = make_bench()
    handler = bench.Handler()
    with pytest.raises(LeaseStateError, match="not started"):
        await bench.ask(bench.protect(handler))
    assert handler.runs == 0


async def test_after_its_end_a_request_with_a_key_is_sent_to_another_instance(make_bench: Any) -> None:
    bench = make_bench()
    handler = bench.Handler()
    async with bench.idempotency:
        pass
    answer = await bench.ask(bench.protect(handler))
    assert (answer.status, answer.code, handler.runs) == (503, "store-unavailable", 0)


async def test_a_clock_that_jumped_does_not_break_retry_after() -> None:
    from tenure.ext.asgi._problems import in_flight

    for left_s, asked in ((-5.0, 1), (0.0, 1), (1e9, 5), (math.inf, 5), (math.nan, 5)):
        assert in_flight(left_s, 5).retry_after_s == asked
