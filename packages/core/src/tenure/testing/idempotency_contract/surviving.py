"""Rule 8, across a restart: what was answered has been written."""

from tenure._idempotency_machine import RecordState
from tenure.testing.idempotency_contract.bench import RecordBench
from tenure.testing.idempotency_contract.case import Rung

__all__ = ["RUNG"]

RUNG = Rung(8)


@RUNG.case(
    "Records outlive a restart of the server: executions, attempts, payloads and outcomes",
    race="The server restarts, and every request whose client repeats itself runs a second time.",
    waits=True,
    restarts=True,
)
async def records_survive(bench: RecordBench) -> None:
    flying, twice, completed = bench.key("flying"), bench.key("twice"), bench.key("completed")
    await bench.abandon(twice)
    again = await bench.begin(twice, attempt=2, what="acquire() of an abandoned execution")
    owner = await bench.begin(flying)
    await bench.begin(completed, owner)
    await bench.completes(completed, owner, b"\0kept")
    await bench.restart()
    await bench.find_in_flight(flying, what="acquire() of an execution in flight after a restart")
    await bench.find_mismatch(flying, RecordState.IN_FLIGHT, what="acquire() with another payload after a restart")
    await bench.begin(twice, again, attempt=2, what="acquire() by the owner of a second attempt after a restart")
    await bench.find_completed(completed, b"\0kept", owner, what="acquire() of a completed record after a restart")
    await bench.completes(flying, owner, what="complete() by the owner after a restart")
