"""The scene of the count that takes longer than three ticks."""

from typing import Final

from cat_store.demo.facts import Overlap
from cat_store.demo.narrator import Narrator
from cat_store.demo.stage import INSTANCES, Stage
from cat_store.inventory.reconciliation import STOCK_RECONCILIATION
from cat_store.partners.wire import WarehouseSwitches

__all__ = ["count_for_long"]

_TICKS: Final = 3
"""How many ticks the count has to outlast."""

_ANSWER_IN_TICKS: Final = 1.3
"""
What each answer of the warehouse takes. One begins a count, and three bring its pages: from its beginning on it takes
almost four ticks, of which three are waited for.
"""

_LONGEST_ANSWER_S: Final = 25.0
"""The shop waits half a minute for an answer."""

_PATIENCE_S: Final = 30.0


async def count_for_long(stage: Stage, narrator: Narrator) -> Overlap:
    """
    Slow the warehouse down, and see who begins a count at the ticks during a long one.

    The owner's schedule enters no tick while it is at the last one, so the ticks that are skipped are the others'.
    """
    narrator.scene(
        "A count that takes longer than three ticks",
        "The warehouse takes its time for each page. The ticks go on meanwhile, and no replica begins another count: "
        "the job has an owner, and its run lock is renewed for as long as the run takes.",
    )
    tick_s = stage.options.tick_s
    await stage.partners.switch_warehouse(WarehouseSwitches(delay_s=min(_ANSWER_IN_TICKS * tick_s, _LONGEST_ANSWER_S)))
    before = await stage.partners.warehouse()
    begun = await stage.partners.wait_for_warehouse(
        lambda statement: statement.full_counts > before.full_counts,
        "a count to be begun",
        within_s=stage.options.ttl_s + 3 * tick_s + _PATIENCE_S,
    )
    mark, owner = stage.journal.mark, begun.senders[-1]

    def skipped() -> int:
        return max(
            stage.journal.count("tenure.JobSkipped", after=mark, instance=name, key=STOCK_RECONCILIATION)
            for name in INSTANCES
            if name != owner
        )

    await stage.journal.wait_until(
        lambda: skipped() >= _TICKS, "skipped ticks of the others", within_s=_TICKS * tick_s + _PATIENCE_S
    )
    during = await stage.partners.warehouse()
    facts = Overlap(during.full_counts - before.full_counts, skipped())
    await stage.partners.switch_warehouse(WarehouseSwitches())
    narrator.result(
        f"{facts.counts_during_long_count} count, by {owner}, and {facts.skipped_ticks} ticks that the others skipped "
        "meanwhile"
    )
    await narrator.breathe()
    return facts
