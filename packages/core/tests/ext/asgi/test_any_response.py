"""
Whatever an application sends, in whatever pieces, over a store that fails and to a client that hangs up.

Checked against what the middleware promises, on responses that nobody thought of.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

FREES = {307, 308, 401, 403, 407, 408, 409, 423, 425, 429}


@dataclass(frozen=True)
class Plan:
    """One request: what the application sends, and what goes wrong."""

    status: int
    chunks: tuple[bytes, ...]
    declared: bool
    ends: str
    hangs_up_at: int | None
    loses: str | None
    limit: int

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)


PLANS = st.builds(
    Plan,
    status=st.sampled_from([200, 201, 204, 303, 307, 404, 409, 422, 500, 503]),
    chunks=st.lists(st.binary(max_size=8), min_size=1, max_size=5).map(tuple),
    declared=st.booleans(),
    ends=st.sampled_from(["whole", "whole", "whole", "raises", "returns"]),
    hangs_up_at=st.none() | st.integers(0, 5),
    loses=st.sampled_from([None, None, "lose_reply", "lose_request"]),
    limit=st.integers(0, 30),
)


class Application:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.runs = 0

    async def __call__(self, _: Any, receive: Any, send: Any) -> None:
        self.runs += 1
        await receive()
        headers = [(b"content-length", str(len(self.plan.body)).encode())] if self.plan.declared else []
        await send({"type": "http.response.start", "status": self.plan.status, "headers": headers})
        last = len(self.plan.chunks) - 1
        for at, chunk in enumerate(self.plan.chunks):
            more = at < last or self.plan.ends != "whole"
            await send({"type": "http.response.body", "body": chunk, "more_body": more})
        if self.plan.ends == "raises":
            raise RuntimeError("broke off")


async def first_request(bench: Any, app: Any, plan: Plan) -> bytes:
    """Send it, and give the body that the client got."""
    got = bytearray()
    sent = 0
    inbox = [{"type": "http.request", "body": b"{}"}]

    def gone() -> bool:
        return plan.hangs_up_at is not None and sent >= plan.hangs_up_at

    async def receive() -> Any:
        if inbox:
            return inbox.pop()
        if not gone():
            await asyncio.get_running_loop().create_future()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal sent
        if gone():
            raise ConnectionResetError("hung up")
        sent += 1
        got.extend(message.get("body", b""))

    try:
        await app(bench.scope(), receive, send)
    except RuntimeError:
        assert plan.ends == "raises"
    except ConnectionResetError:
        assert plan.hangs_up_at is not None
    return bytes(got)


async def promised(make_bench: Any, plan: Plan) -> None:
    bench = make_bench()
    application = Application(plan)
    async with bench.idempotency:
        if plan.loses:
            getattr(bench.store.on("complete"), plan.loses)(times=1)
        app = bench.protect(application, max_response_bytes=plan.limit)
        got = await first_request(bench, app, plan)
        await bench.clock.advance(5)  # a completion that was lost is stored by now
        # A client that stays gets every byte, whatever became of the record.
        assert plan.body.startswith(got)
        if plan.hangs_up_at is None:
            assert got == plan.body
        # No execution is left in the air.
        assert bench.idempotency.running == 0
        again = None
        try:
            again = await bench.ask(app)
        except RuntimeError:
            assert plan.ends == "raises"
        if plan.status >= 500 or plan.status in FREES:
            assert application.runs == 2
            return
        # A success or a refusal is never carried out again: it is replayed in full, or said to be lost.
        assert application.runs == 1
        assert again is not None
        if again.replayed:
            assert (again.status, again.body) == (plan.status, plan.body)
            assert plan.ends == "whole" or plan.declared
            assert len(plan.body) <= plan.limit
        else:
            assert (again.code, again.problem["original_status"]) == ("response-not-stored", plan.status)
            assert plan.ends != "whole" or len(plan.body) > plan.limit or plan.hangs_up_at is not None


@given(plan=PLANS)
@example(plan=Plan(201, (b"ab", b"c", b""), True, "whole", 1, "lose_reply", 3))
@example(plan=Plan(201, (b"",), True, "raises", None, None, 0))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_sent_is_replayed_in_full_or_said_to_be_lost_and_never_done_twice(
    make_bench: Any, plan: Plan
) -> None:
    asyncio.run(promised(make_bench, plan))
