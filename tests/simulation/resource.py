"""A resource that refuses writes with a lower token: the fence that a paused holder's late write meets."""

from collections import defaultdict
from typing import final

from simulation.journal import START_S, Journal
from simulation.network import Network
from simulation.observers.grants import Grant

__all__ = ["Fence", "Resource"]


@final
class Fence:
    """The rule, as an application writes it: as high as the highest, or refused."""

    def __init__(self) -> None:
        self.highest: defaultdict[str, int] = defaultdict(int)

    def lets(self, key: str, token: int) -> bool:
        """Decide on a write."""
        if token < self.highest[key]:
            return False
        self.highest[key] = token
        return True


@final
class Resource:
    """
    What holders write to, over the network, each write carrying its token. Its observer keeps the book again.

    Attributes:
        fence: The fence under test.
    """

    def __init__(self, network: Network, journal: Journal, late_share: float, late_s: float) -> None:
        self._network = network
        self._journal = journal
        self._late_share = late_share
        self._late_s = late_s
        self._top: dict[str, tuple[int, str]] = {}
        self.fence = Fence()

    def write(self, grant: Grant, late_draw: tuple[float, float]) -> None:
        """Send a write; *late_draw* says whether it is late, and how much."""
        share, much = late_draw
        delay_s = 0.001 + (self._late_s * much if share < self._late_share else 0.0)
        self._network.later(delay_s, self._arrive, grant, self._journal.now - START_S)

    def heal(self) -> None:
        """Let no write be late from now on."""
        self._late_share = 0.0

    def _arrive(self, grant: Grant, sent_at: float) -> None:
        key, token = grant.key, grant.token
        top, holder = self._top.get(key, (0, ""))
        accepted = self.fence.lets(key, token)
        if accepted and token < top:
            self._journal.broke("fence", f'the fence of "{key}" lets {token} pass after {top}')
        if not accepted and token >= top:
            self._journal.broke("fence", f'the fence of "{key}" refuses {token}, and the highest is {top}')
        if token == top and holder != grant.owner:
            self._journal.broke("token", f'two owners write to "{key}" under one token, {token}')
        if accepted and token >= top:
            self._top[key] = (token, grant.owner)
        self._journal.saw("a write accepted" if accepted else "a stale write refused")
        self._journal.say(grant.life.name, f"write to {key} under {token} {'accepted' if accepted else 'refused'}")
        fields = {"resource": key, "key": key, "token": token, "accepted": accepted, "sent_at": sent_at}
        self._journal.note("write", grant.life.name, **fields)
