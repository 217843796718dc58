"""One request under its key: it runs once, its repeats get its response, and nobody else learns of it."""

import asyncio
from typing import Any

import pytest

from tenure.ext.asgi import UNSCOPED

SECRETS = ("k-1", "anna", "ben", "bench:")
"""What no answer of the middleware's own may hold: a key, a principal, the beginning of an owner."""


async def test_a_repeat_gets_the_first_response_with_the_mark_and_nothing_runs(bench: Any) -> None:
    handler = bench.Handler(headers=[(b"content-type", b"text/plain"), (b"content-length", b"5")])
    app = bench.protect(handler)
    first, second = await bench.ask(app), await bench.ask(app)
    assert (first.status, first.body, first.replayed, first.lines("idempotent-replayed")) == (201, b"run 1", False, [])
    assert (second.status, second.body, second.replayed) == (201, b"run 1", True)
    assert second.lines("content-length") == ["5"]
    assert handler.runs == 1
    assert bench.outcomes == ["acquired", "stored", "replayed"]


async def test_any_number_of_concurrent_requests_runs_once(bench: Any) -> None:
    handler = bench.Handler()
    handler.pause()
    app = bench.protect(handler)
    racers = [asyncio.create_task(bench.ask(app)) for _ in range(32)]
    await handler.reached.wait()
    await asyncio.sleep(0)
    handler.proceed.set()
    answers = await asyncio.gather(*racers)
    late = await bench.ask(app)
    assert handler.runs == 1
    assert sorted(answer.status for answer in answers) == [201] + [409] * 31
    assert {answer.code for answer in answers if answer.status == 409} == {"in-flight"}
    assert late.replayed


async def test_a_storm_on_a_key_in_flight_costs_one_store_call_each_and_runs_nothing(bench: Any) -> None:
    handler = bench.Handler()
    handler.pause()
    app = bench.protect(handler)
    first = asyncio.create_task(bench.ask(app))
    await handler.reached.wait()
    before, completed, released = (bench.store.calls[name] for name in ("acquire", "complete", "release"))
    answers = await asyncio.gather(*(bench.ask(app) for _ in range(500)))
    assert {(answer.status, answer.code) for answer in answers} == {(409, "in-flight")}
    assert bench.store.calls["acquire"] - before == 500
    assert (bench.store.calls["complete"], bench.store.calls["release"]) == (completed, released)
    handler.proceed.set()
    assert (await first).status == 201
    assert handler.runs == 1


@pytest.mark.parametrize(("left_s", "asked"), [(0.2, 1), (2.4, 3), (30, 5)])
async def test_retry_after_is_what_is_left_of_the_lock_from_a_second_to_the_routes_limit(
    bench: Any, left_s: float, asked: int
) -> None:
    handler = bench.Handler()
    app = bench.protect(handler)
    from tenure.idempotency_store import InFlight

    bench.store.on("acquire").answer(InFlight(int(left_s * 1000)))
    answer = await bench.ask(app)
    assert answer.lines("retry-after") == [str(asked)]
    assert (answer.status, answer.problem["retry_after"], handler.runs) == (409, asked, 0)


async def test_another_body_is_refused_in_flight_abandoned_and_completed(bench: Any) -> None:
    handler = bench.Handler()
    app = bench.protect(handler)

    async def refused() -> None:
        answer = await bench.ask(app, body=b'{"other": 1}')
        assert (answer.status, answer.code) == (422, "key-reused")

    handler.pause()
    first = asyncio.create_task(bench.ask(app))
    await handler.reached.wait()
    await refused()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await bench.abandoned()
    await refused()
    handler.proceed.set()
    assert (await bench.ask(app)).status == 201
    await refused()
    assert handler.attempts == [1, 2]


async def test_another_engine_on_the_store_replays_the_same_and_still_refuses_another_body(
    bench: Any, make_bench: Any
) -> None:
    handler = bench.Handler()
    first = await bench.ask(bench.protect(handler))
    cold = make_bench()
    cold.store.inner, cold.clock = bench.memory, bench.clock
    async with cold.idempotency:
        app = cold.protect(handler)
        again = await cold.ask(app)
        assert (again.status, again.body, again.replayed) == (first.status, first.body, True)
        assert (await cold.ask(app, body=b"[]")).code == "key-reused"
    assert handler.runs == 1


async def test_after_the_retention_a_repeat_is_a_new_request(bench: Any) -> None:
    handler = bench.Handler()
    app = bench.protect(handler, retention="10m")
    await bench.ask(app)
    await bench.clock.advance("599s")
    assert (await bench.ask(app)).replayed
    await bench.clock.advance("1s")
    assert not (await bench.ask(app)).replayed
    assert handler.attempts == [1, 1]


async def test_a_slow_handler_keeps_its_key(bench: Any) -> None:
    handler = bench.Handler()
    handler.pause()
    app = bench.protect(handler)
    first = asyncio.create_task(bench.ask(app))
    await handler.reached.wait()
    for _ in range(10):
        await bench.clock.advance(bench.lock_ttl_s)
        assert (await bench.ask(app)).code == "in-flight"
    handler.proceed.set()
    assert (await first).status == 201
    assert (await bench.ask(app)).replayed


async def test_a_hung_handler_gives_its_key_up_after_max_execution_and_cannot_overwrite_its_successor(
    bench: Any,
) -> None:
    handler = bench.Handler()
    handler.pause()
    app = bench.protect(handler, max_execution="1m")
    first = asyncio.create_task(bench.ask(app))
    await handler.reached.wait()
    await bench.clock.advance("2m")
    handler.proceed.set()
    second = await bench.ask(app)
    assert (await first).status == 201
    assert second.body == b"run 2"
    assert (await bench.ask(app)).body == b"run 2"
    assert handler.attempts == [1, 2]


async def test_a_waiting_duplicate_gets_the_replay(bench: Any) -> None:
    handler = bench.Handler()
    handler.pause()
    app = bench.protect(handler, wait=10)
    first = asyncio.create_task(bench.ask(app))
    await handler.reached.wait()
    second = asyncio.create_task(bench.ask(app))
    await bench.store.called("acquire", times=2)
    assert (await bench.ask(app, body=b"other")).code == "key-reused"  # who waits with another body does not wait
    handler.proceed.set()
    await first
    await bench.clock.advance(1)
    assert (await second).replayed


# -------------------------------------------------------------------------------------- principals


async def test_two_principals_with_one_key_are_two_requests_and_neither_learns_of_the_other(bench: Any) -> None:
    handler = bench.Handler()
    handler.pause()
    app = bench.protect(handler)
    first = asyncio.create_task(bench.ask(app, account="anna", body=b"a"))
    await handler.reached.wait()
    handler.reached.clear()
    # While hers is in flight, with another body: neither 409 nor 422, he gets to the handler.
    other = asyncio.create_task(bench.ask(app, account="ben", body=b"b"))
    await handler.reached.wait()
    assert handler.attempts == [1, 1]
    handler.proceed.set()
    assert ((await first).status, (await other).status) == (201, 201)
    assert handler.runs == 2
    assert (await bench.ask(app, account="anna", body=b"a")).replayed


async def test_unscoped_shares_the_keys_by_name(bench: Any) -> None:
    handler = bench.Handler()
    app = bench.protect(handler, principal=UNSCOPED)
    await bench.ask(app, account="anna")
    assert (await bench.ask(app, account="ben")).replayed is True


async def test_two_namespaces_share_nothing(bench: Any) -> None:
    handler = bench.Handler()
    await bench.ask(bench.protect(handler, namespace="orders"))
    assert not (await bench.ask(bench.protect(handler, namespace="refunds"))).replayed


@pytest.mark.parametrize("named", [None, "", "  ", 7])
async def test_a_principal_that_is_none_is_answered_500_and_nothing_ran(bench: Any, named: Any, caplog: Any) -> None:
    handler = bench.Handler()
    answer = await bench.ask(bench.protect(handler, principal=lambda _: named))
    assert (answer.status, answer.problem["type"], handler.runs, bench.outcomes) == (500, "about:blank", 0, [])
    assert "principal" in caplog.text


async def test_a_principal_may_be_awaitable(bench: Any) -> None:
    async def principal(scope: Any) -> str:
        await asyncio.sleep(0)
        return dict(scope["headers"])[b"x-account"].decode()

    handler = bench.Handler()
    app = bench.protect(handler, principal=principal)
    for account in ("anna", "anna", "ben"):
        await bench.ask(app, account=account)
    assert handler.runs == 2


async def test_an_awaitable_principal_that_is_none_is_refused_as_well(bench: Any) -> None:
    async def principal(_: Any) -> None:
        return None

    handler = bench.Handler()
    assert (await bench.ask(bench.protect(handler, principal=principal))).status == 500
    assert handler.runs == 0


async def test_what_the_principal_raises_goes_out_as_it_is_and_nothing_ran(bench: Any) -> None:
    def principal(_: Any) -> str:
        raise PermissionError("who?")

    handler = bench.Handler()
    with pytest.raises(PermissionError, match="who"):
        await bench.ask(bench.protect(handler, principal=principal))
    assert (handler.runs, bench.outcomes) == (0, [])


# -------------------------------------------------------------------------------------- authorize


async def test_authorize_is_asked_before_the_store_so_before_every_replay(bench: Any) -> None:
    from tenure.ext.asgi import IdempotencyOptions

    handler = bench.Handler()
    guard = bench.protect(handler)._guard
    allowed = True

    async def authorize() -> None:
        if not allowed:
            raise PermissionError

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await guard.handle(scope, receive, send, handler, options=IdempotencyOptions(), authorize=authorize)

    assert (await bench.ask(app)).status == 201
    assert (await bench.ask(app)).replayed
    asked = bench.store.calls["acquire"]
    allowed = False
    for body in (b"{}", b"other"):
        with pytest.raises(PermissionError):
            await bench.ask(app, body=body)
    assert bench.store.calls["acquire"] == asked
    assert (await bench.ask(app, key="a, b")).code == "malformed-key"


async def test_no_answer_of_the_middlewares_own_holds_key_principal_or_owner(bench: Any, caplog: Any) -> None:
    handler = bench.Handler(error=RuntimeError("boom"))
    app = bench.protect(handler, on_failure="abandon", on_abandoned="refuse")
    with pytest.raises(RuntimeError, match="boom"):
        await bench.ask(app)
    await bench.abandoned()
    answers = [
        await bench.ask(app),
        await bench.ask(app, body=b"other"),
        await bench.ask(app, key="k-1,"),
        await bench.ask(bench.protect(handler, principal=lambda _: "")),
    ]
    assert [answer.status for answer in answers] == [409, 422, 400, 500]
    (record, *_) = bench.memory._records
    for answer in answers:
        text = (answer.body + repr(answer.headers).encode()).decode()
        assert not any(secret in text for secret in (*SECRETS, record, bench.memory._records[record].fingerprint))
    assert not any(secret in caplog.text for secret in SECRETS)
