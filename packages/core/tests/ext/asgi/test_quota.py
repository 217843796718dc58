"""What one client may have under keys on an instance, and that nobody else is told to wait for it."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.ext.asgi import ClientQuota, IdempotencyMiddleware, RequestGuard, _quota
from tenure.ext.asgi._quota import OverQuotaError, Place, Places
from tenure.testing import ManualClock

PER_S = 600


def quota(in_flight: int = 100, new_keys: int = 100) -> ClientQuota:
    return ClientQuota(in_flight=in_flight, new_keys=new_keys, per=PER_S)


def told(answer: Any) -> tuple[int, str | None, list[str]]:
    return answer.status, answer.code, answer.lines("retry-after")


# ------------------------------------------------------------------------------------------- new keys


async def test_a_client_with_too_many_new_keys_waits_and_the_store_is_not_asked(bench: Any) -> None:
    handler = bench.Handler()
    app = bench.protect(handler, quota=quota(new_keys=2))
    for key in ("one", "two"):
        assert (await bench.ask(app, key=key)).status == 201
        await bench.clock.advance(100)
    asked = bench.store.calls["acquire"]
    over = await bench.ask(app, key="three")
    assert told(over) == (429, "too-many-requests", [str(PER_S - 200)])
    assert over.problem["retry_after"] == PER_S - 200
    assert (over.problem["type"], over.lines("cache-control")) == (
        "urn:tenure:idempotency:too-many-requests",
        ["no-store"],
    )
    assert (bench.store.calls["acquire"], handler.runs) == (asked, 2)
    assert (await bench.ask(app, key="three", account="ben")).status == 201
    # As long as it was told, and not a moment less: the oldest key counts no more then.
    await bench.clock.advance(PER_S - 200 - 1)
    assert told(await bench.ask(app, key="three"))[2] == ["1"]
    await bench.clock.advance(1)
    assert (await bench.ask(app, key="three")).status == 201
    assert told(await bench.ask(app, key="four"))[2] == ["100"]
    assert bench.outcomes.count("over quota") == 3


async def test_a_repeat_of_a_key_that_was_begun_here_is_answered_as_ever(bench: Any) -> None:
    handler = bench.Handler()
    app = bench.protect(handler, quota=quota(new_keys=2))
    await bench.ask(app, key="done")
    handler.pause()
    handler.reached.clear()
    running = asyncio.create_task(bench.ask(app, key="running"))
    await handler.reached.wait()
    assert told(await bench.ask(app, key="new"))[0] == 429
    assert (await bench.ask(app, key="done")).replayed
    assert (await bench.ask(app, key="done", body=b"other")).code == "key-reused"
    assert (await bench.ask(app, key="running")).code == "in-flight"
    handler.proceed.set()
    assert (await running).status == 201
    assert handler.runs == 2


async def test_what_makes_no_new_record_is_not_counted(bench: Any) -> None:
    """A replay of what another instance began, another payload, a second attempt."""
    handler = bench.Handler()
    elsewhere = bench.protect(handler)
    for key in ("a", "b", "c"):
        await bench.ask(elsewhere, key=key)
    app = bench.protect(handler, quota=quota(new_keys=1), on_failure="abandon")
    for key in ("a", "b", "c"):
        assert (await bench.ask(app, key=key)).replayed
        assert (await bench.ask(app, key=key, body=b"other")).code == "key-reused"
    handler.error = RuntimeError("boom")
    for key in ("d", "e"):
        with pytest.raises(RuntimeError):
            await bench.ask(bench.protect(handler, on_failure="abandon"), key=key)
    await bench.abandoned()
    handler.error = None
    for key in ("d", "e", "f"):
        assert (await bench.ask(app, key=key)).status == 201
    assert handler.attempts[-3:] == [2, 2, 1]
    assert told(await bench.ask(app, key="g"))[0] == 429


async def test_a_key_whose_record_was_released_counts_once_however_often_it_is_begun(bench: Any) -> None:
    handler = bench.Handler(status=409)
    app = bench.protect(handler, quota=quota(new_keys=2))
    for key in ("one", "one", "one", "two", "one"):
        assert (await bench.ask(app, key=key)).status == 409
    assert (handler.runs, told(await bench.ask(app, key="three"))[0]) == (5, 429)


async def test_new_keys_count_while_the_store_is_asked_and_not_where_it_failed(bench: Any) -> None:
    app = bench.protect(bench.Handler(), quota=quota(new_keys=2))
    bench.store.on("acquire").hang()
    asking = [asyncio.create_task(bench.ask(app, key=key)) for key in ("one", "two", "two")]
    await bench.store.called("acquire", 3)
    assert told(await bench.ask(app, key="three")) == (429, "too-many-requests", ["1"])
    for task in asking:
        task.cancel()
    await asyncio.wait(asking)
    bench.store.heal()
    bench.store.on("acquire").fail(ConnectionResetError())
    for key in ("one", "two", "three"):
        assert (await bench.ask(app, key=key)).code == "store-unavailable"
    bench.store.heal()
    assert [(await bench.ask(app, key=key)).status for key in ("one", "two", "three")] == [201, 201, 429]


MANY = 100_000


@pytest.mark.matrix
async def test_a_hundred_thousand_keys_of_one_client_leave_a_bounded_number_of_records(bench: Any) -> None:
    handler = bench.Handler()
    app = bench.protect(handler, quota=quota(new_keys=50))
    statuses = {201: 0, 429: 0}
    ours, value = [(b"x-account", b"anna")], b"{}"

    async def receive() -> Any:
        return {"type": "http.request", "body": value, "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses[message["status"]] += 1

    scope = bench.scope(key=None)
    for number in range(MANY):
        await app({**scope, "headers": [*ours, (b"idempotency-key", b"%d" % number)]}, receive, send)
    assert statuses == {201: 50, 429: MANY - 50}
    assert (len(bench.memory._records), handler.runs) == (50, 50)
    assert sum(len(record.response) for record in bench.memory._records.values()) < 50 * 1000
    # Another one is served, and the first one's repeats are answered.
    assert (await bench.ask(app, account="ben")).status == 201
    assert (await bench.ask(app, key="49")).replayed
    bench.events.clear()


# ----------------------------------------------------------------------------------------- in flight


async def test_a_client_with_too_many_requests_in_flight_waits_and_nobody_else_does(bench: Any) -> None:
    handler = bench.Handler()
    handler.pause()
    app = bench.protect(handler, quota=quota(in_flight=3))
    running = [asyncio.create_task(bench.ask(app, key=f"{number}")) for number in range(3)]
    while handler.runs < 3:
        await asyncio.sleep(0)
    asked = bench.store.calls["acquire"]
    for key in ("new", "0"):
        assert told(await bench.ask(app, key=key)) == (429, "too-many-requests", ["1"])
    assert (bench.store.calls["acquire"], handler.runs) == (asked, 3)
    other = asyncio.create_task(bench.ask(app, key="new", account="ben"))
    while handler.runs < 4:
        await asyncio.sleep(0)
    handler.proceed.set()
    assert {(await task).status for task in [*running, other]} == {201}
    assert (await bench.ask(app, key="new")).status == 201


async def test_one_that_waits_for_the_first_request_has_its_place_too(bench: Any) -> None:
    handler = bench.Handler()
    handler.pause()
    app = bench.protect(handler, quota=quota(in_flight=2), wait=60)
    pair = [asyncio.create_task(bench.ask(app)) for _ in range(2)]
    await bench.store.called("acquire", 2)
    assert told(await bench.ask(app, key="new"))[0] == 429
    handler.proceed.set()
    await asyncio.wait(pair, return_when=asyncio.FIRST_COMPLETED)
    await bench.clock.advance(5)
    assert sorted([(await task).replayed for task in pair]) == [False, True]
    assert (await bench.ask(app, key="new")).status == 201


@pytest.mark.parametrize("end", ["error", "exit", "cancelled", "500", "store", "refused", "replay", "slow reader"])
async def test_a_place_is_given_back_however_a_request_ends(bench: Any, end: str) -> None:
    handler = bench.Handler()
    app = bench.protect(handler, quota=quota(in_flight=1))
    again: tuple[asyncio.Task[None], ...] = ()
    if end in ("error", "exit"):
        handler.error = RuntimeError("boom") if end == "error" else SystemExit()
        with pytest.raises((RuntimeError, SystemExit)):
            await bench.ask(app)
    elif end == "cancelled":
        handler.pause()
        task = asyncio.create_task(bench.ask(app))
        await handler.reached.wait()
        task.cancel()
        await asyncio.wait([task])
    elif end == "store":
        bench.store.on("acquire").fail(ConnectionResetError())
        assert (await bench.ask(app)).status == 503
        bench.store.heal()
    elif end == "500":
        handler.status = 500
        assert (await bench.ask(app)).status == 500
    else:
        await bench.ask(app)
        if end == "slow reader":
            sending = asyncio.Event()
            again = (asyncio.create_task(_read_slowly(bench, app, sending)),)
            await sending.wait()
        else:
            await bench.ask(app, body=b"other" if end == "refused" else b"{}")
    handler.error, handler.status = None, 201
    handler.proceed.set()
    for _ in range(2):
        assert (await bench.ask(app, key="next")).status == 201
    for task in again:
        task.cancel()
        await asyncio.wait([task])


async def _read_slowly(bench: Any, app: Any, sending: asyncio.Event) -> None:
    """Repeat a request, and take nothing of what comes back."""

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(_: Any) -> None:
        sending.set()
        await asyncio.get_running_loop().create_future()

    await app(bench.scope(), receive, send)


# --------------------------------------------------------------------------------- what is remembered


def take(places: Places, principal: str | None, key: str) -> Place | None:
    try:
        return places.take(principal, key)
    except OverQuotaError as over:
        waits = over.retry_after_s
    assert waits >= 1
    return None


def begin(places: Places, principal: str, key: str) -> None:
    place = places.take(principal, key)
    place.answered(began=True)
    place.leave()


def test_the_clients_that_are_remembered_are_bounded_and_none_in_flight_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_quota, "_MOST_CLIENTS", 100)
    places = Places(quota(new_keys=1, in_flight=1), ManualClock())
    busy = [places.take(f"busy {number}", "k") for number in range(150)]
    assert len(places._clients) == 150
    for number in range(1000):
        begin(places, f"client {number}", "k")
        assert len(places._clients) <= 151
    assert all(take(places, f"busy {number}", "k") is None for number in range(150))
    for place in busy:
        place.leave()
    begin(places, "one more", "k")
    assert len(places._clients) == 100
    # Those who asked longest ago begin anew; who asked last is remembered.
    assert take(places, "one more", "other") is None
    assert take(places, "client 0", "other") is not None


def test_planted_a_client_in_flight_that_is_forgotten_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(self: Places) -> None:
        while len(self._clients) > 100:
            self._clients.popitem(last=False)

    monkeypatch.setattr(Places, "_forget_idle", forget)
    with pytest.raises(AssertionError):
        test_the_clients_that_are_remembered_are_bounded_and_none_in_flight_is_forgotten(monkeypatch)


def test_the_keys_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_quota, "_MOST_KEYS", 50)
    clock = ManualClock()
    places = Places(quota(new_keys=10), clock)
    for number in range(1000):
        begin(places, f"client {number // 10}", f"{number}")
        assert places._keys == sum(len(client.begun) for client in places._clients.values()) <= 51
    assert take(places, "client 99", "new") is None


async def test_what_has_ended_is_forgotten(bench: Any) -> None:
    places = Places(quota(new_keys=10), bench.clock)
    for number in range(10):
        begin(places, "anna", f"{number}")
    await bench.clock.advance(PER_S)
    begin(places, "anna", "new")
    assert (places._keys, len(next(iter(places._clients.values())).begun)) == (1, 1)


def test_nothing_of_a_principal_or_a_key_is_kept_in_the_clear() -> None:
    places = Places(quota(), ManualClock())
    begin(places, "anna-secret", "key-secret" * 1000)
    [(name, client)] = places._clients.items()
    assert {len(name), *map(len, client.begun)} == {16}
    assert "secret" not in repr((name, client))


def test_all_are_one_where_the_principal_is_waived() -> None:
    places = Places(quota(new_keys=1), ManualClock())
    assert take(places, None, "one") is not None
    assert take(places, None, "two") is None
    assert take(places, "anna", "two") is not None


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["take", "take", "take", "began", "known", "leave", "wait"]),
        st.integers(0, 5),
        st.integers(0, 9),
    ),
    max_size=80,
)


@settings(deadline=None, max_examples=200)
@given(steps=STEPS, in_flight=st.integers(1, 4), new_keys=st.integers(1, 4))
def test_no_order_of_requests_exceeds_the_bound(steps: Any, in_flight: int, new_keys: int) -> None:
    """Against the rule itself: in any span, at most so many different keys whose records were begun."""
    clock = ManualClock()
    places = Places(ClientQuota(in_flight=in_flight, new_keys=new_keys, per=10), clock)
    there: list[tuple[Place, str, list[bool]]] = []
    begun: list[tuple[float, str]] = []
    for what, at, key in steps:
        if what == "wait":
            clock.stall(at)
        elif what == "take":
            place = take(places, "anna", f"{key}")
            if place is not None:
                there.append((place, f"{key}", []))
            elif len(there) < in_flight:
                within = {one for when, one in begun if when > clock.now() - 10}
                asking = {one for _, one, answered in there if not answered}
                assert f"{key}" not in within | asking, "a repeat was refused"
                assert len(within | asking) >= new_keys, "there was room"
        elif there:
            place, name, answered = there[at % len(there)]
            if what == "leave":
                place.leave()
                there.remove((place, name, answered))
            elif not answered:
                answered.append(True)
                place.answered(began=what == "began")
                begun += [(clock.now(), name)] * (what == "began")
        assert len(there) <= in_flight
        for until, _ in begun:
            assert len({one for when, one in begun if until - 10 < when <= until}) <= new_keys


# --------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("in_flight", value) for value in (0, -1, 10_001, 1.0, True, "3", None)),
        *(("new_keys", value) for value in (0, 100_001, "many")),
        *(("per", value) for value in (0, -1, "soon", None)),
    ],
)
def test_a_quota_that_cannot_be_is_refused_and_named(name: str, value: Any) -> None:
    with pytest.raises(Exception, match=rf"\b{name}\b"):
        ClientQuota(**{name: value})


async def test_a_guard_takes_a_quota_or_none(bench: Any) -> None:
    make: Any = IdempotencyMiddleware
    for wrong in (32, {"in_flight": 1}, ClientQuota):
        with pytest.raises(Exception, match="quota is a ClientQuota"):
            make(bench.Handler(), idempotency=bench.idempotency, principal=lambda _: "anna", quota=wrong)
    assert RequestGuard(bench.idempotency, principal=lambda _: "anna")._places is None
