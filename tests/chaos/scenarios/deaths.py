"""C1 and C2: the holder's process ends, at once or in order."""

import asyncio
import itertools
import random

from chaos.holders import holders, holding, next_grant
from chaos.ledger import Ledger
from chaos.outcome import Times
from chaos.scenario import Run, scenario
from chaos.stores import STORES, backend

TTL_S = 1.0
RETRY_S = TTL_S / 3
"""The longest pause of a waiter between two tries, which the library sets."""

KEY = "job"
_HOLDERS = 3


@scenario(
    "C1",
    "kill -9 of the holder",
    claims="H1 H2 H6",
    stores=STORES,
    quick=8,
    full=100,
    quick_stores=("postgres", "valkey"),
)
async def a_holder_is_killed(run: Run) -> None:
    """One of three holds the key; it is killed, and another has it after the ttl."""
    tokens, takeovers = await _successions(run, graceful=False)
    run.zero("tokens repeated or out of order", _disorder(tokens), of=len(tokens))
    run.within("takeover p99", Times.of(takeovers).p99, TTL_S + RETRY_S + 0.25)
    run.times("takeover", takeovers)


@scenario(
    "C2",
    "SIGTERM of the holder",
    claims="H1 H2 H6",
    stores=STORES,
    quick=8,
    full=50,
    quick_stores=("postgres", "valkey"),
)
async def a_holder_is_stopped(run: Run) -> None:
    """One of three holds the key; it is told to stop and hands it back, and a waiter has it by its next try."""
    tokens, handovers = await _successions(run, graceful=True)
    run.zero("tokens repeated or out of order", _disorder(tokens), of=len(tokens))
    run.within("handover p99", Times.of(handovers).p99, RETRY_S + 0.1)
    run.times("handover", handovers)


def _disorder(tokens: list[int]) -> int:
    return sum(later <= earlier for earlier, later in itertools.pairwise(tokens))


async def _successions(run: Run, *, graceful: bool) -> tuple[list[int], list[float]]:
    """End the holder so many times; returns the tokens in their order, and from each end to the next grant."""
    tokens: list[int] = []
    spans: list[float] = []
    moments = random.Random(run.n)
    async with backend(run.store) as found, Ledger(run.recorder) as ledger:
        run.promise(ttl_s=TTL_S, takeover_s=TTL_S + RETRY_S + 0.25)
        arguments = ("--url", found.url, "--ttl", str(TTL_S), "--key", KEY, "--ledger", str(ledger.port))
        async with holders(run, _HOLDERS, *arguments) as processes:
            await next_grant(processes, KEY, above=0)
            while len(spans) < run.n:
                # Anywhere between two renewals: a holder that always died as young would show one end of the range.
                await asyncio.sleep(moments.uniform(0, TTL_S / 3))
                holder, token = holding(processes, KEY)
                others = [one for one in processes if one is not holder]
                ended_at = await (holder.terminate() if graceful else holder.kill())
                granted_at = await next_grant(others, KEY, above=token)
                tokens.append(holding(others, KEY)[1])
                # On a busy machine the lease may have been lost, and taken over, just before its end.
                if granted_at > ended_at:
                    spans.append(granted_at - ended_at)
                await holder.start()
    run.check_history()
    return tokens, spans
