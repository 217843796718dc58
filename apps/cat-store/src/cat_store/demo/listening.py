"""The scene of the alert feed, whose leader is killed."""

import time
from typing import Final

from cat_store.demo.facts import Feed
from cat_store.demo.journal import NotSeenError
from cat_store.demo.narrator import Narrator
from cat_store.demo.stage import Stage
from cat_store.inventory.catalogue import SALMON_KIBBLE
from cat_store.partners.wire import Shelf

__all__ = ["kill_the_listener"]

_PATIENCE_S: Final = 30.0
_LEFT: Final = 4


async def kill_the_listener(stage: Stage, narrator: Narrator) -> Feed:
    """Kill -9 the leader that listens to the feed: the next one connects, and hears what was said meanwhile."""
    narrator.scene(
        "The warehouse's alert feed",
        "The warehouse takes one connection for the whole shop. The replica that was elected has it, and is killed. "
        "Its lease expires, another one is elected, connects, and is told the alert that came in between.",
    )
    await stage.partners.wait_for_warehouse(
        lambda statement: statement.open_feeds == 1 and _listener(stage) is not None,
        "a connection to the feed",
        within_s=2 * stage.options.ttl_s + _PATIENCE_S,
    )
    leader = _listener(stage)
    if leader is None:
        raise NotSeenError("The connection to the feed was lost without a reason.")
    mark, killed_at = stage.journal.mark, time.monotonic()
    await stage.kill(leader)
    await stage.partners.alert(Shelf(SALMON_KIBBLE, _LEFT))
    narrator.step(f"{leader} is gone, and {_LEFT} bags of salmon kibble are left.")
    takeover = await stage.journal.wait_for(
        "feed.connected",
        after=mark,
        within_s=2 * stage.options.ttl_s + _PATIENCE_S,
        where=lambda e: e.instance != leader,
    )
    await stage.journal.wait_for(
        "feed.alert", after=mark, within_s=_PATIENCE_S, instance=takeover.instance, product=SALMON_KIBBLE, left=_LEFT
    )
    statement = await stage.partners.warehouse()
    facts = Feed(max_connections=statement.most_feeds, takeover_s=round(takeover.at - killed_at, 3))
    narrator.result(
        f"{takeover.instance} listens {facts.takeover_s:.2f} s after {leader} was killed, and missed no alert; never "
        f"more than {facts.max_connections} connection"
    )
    await narrator.breathe()
    await stage.launch(leader)
    return facts


def _listener(stage: Stage) -> str | None:
    """Who listens, by the last word of each replica since its start: one that was paused may say late that it left."""
    left: set[str] = set()
    for entry in stage.journal.latest():
        if entry.instance in left or entry.number <= stage.launched[entry.instance]:
            continue
        if entry.event == "feed.connected":
            return entry.instance
        if entry.event == "feed.disconnected":
            left.add(entry.instance)
    return None
