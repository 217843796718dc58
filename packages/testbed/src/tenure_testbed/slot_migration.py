"""A slot of a Valkey cluster on its way from one primary to another."""

from collections.abc import Iterable

from tenure_testbed.errors import StatementError
from tenure_testbed.ports import LOOPBACK
from tenure_testbed.process import until
from tenure_testbed.resp import fields
from tenure_testbed.valkey_node import ValkeyNode

# One key of a test bed is a few bytes; the server gives up after so long.
_MIGRATE_MS = 5000
_KEYS_AT_ONCE = 1000
_ATOMIC_SECONDS = 30.0


class OpenSlot:
    """
    A slot that is being moved key by key: one primary hands out, the other takes in.

    Args:
        slot: Which.
        source: The primary that has it.
        target: The primary that gets it.
    """

    def __init__(self, slot: int, source: ValkeyNode, target: ValkeyNode) -> None:
        self.slot = slot
        self.source = source
        self.target = target

    def begin(self) -> None:
        """Open the slot at both ends; the taking end first, so that nobody is sent to one that knows of nothing."""
        self.target.execute("CLUSTER", "SETSLOT", self.slot, "IMPORTING", self.source.id)
        self.source.execute("CLUSTER", "SETSLOT", self.slot, "MIGRATING", self.target.id)

    def keys(self) -> list[str]:
        """The keys of the slot that are still at the source, a thousand at most."""
        found = self.source.execute("CLUSTER", "GETKEYSINSLOT", self.slot, _KEYS_AT_ONCE)
        assert isinstance(found, list)
        return [str(key) for key in found]

    def move(self, *keys: str) -> int:
        """
        Move keys now, one after the other.

        Args:
            keys: Which; one that is not at the source is passed over.

        Returns:
            How many were moved.
        """
        replies = [self.source.execute("MIGRATE", LOOPBACK, self.target.port, key, 0, _MIGRATE_MS) for key in keys]
        return replies.count("OK")

    def move_all(self) -> None:
        """Move every key that is still at the source."""
        while keys := self.keys():
            self.move(*keys)

    def finish(self, primaries: Iterable[ValkeyNode]) -> None:
        """
        Move what is left and let the slot change hands.

        Args:
            primaries: Every primary: each is told, rather than waiting for the gossip to reach it.
        """
        self.move_all()
        others = [node for node in primaries if node not in (self.source, self.target)]
        # The new owner first: an old owner that gave the slot up alone would leave it without any.
        for node in (self.target, self.source, *others):
            node.execute("CLUSTER", "SETSLOT", self.slot, "NODE", self.target.id)


def migrate_atomically(slot: int, source: ValkeyNode, target: ValkeyNode) -> None:
    """
    Move a slot as a whole, and wait until the source has handed it over.

    Args:
        slot: Which.
        source: The primary that has it.
        target: The primary that gets it.

    Raises:
        StatementError: The servers do not know how, or gave it up.
    """
    before = _migrations(source).keys()
    source.execute("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target.id)
    until(lambda: _is_over(source, before), f"slot {slot} to move to {target.name}", _ATOMIC_SECONDS)
    for name, (state, message) in _migrations(source).items():
        if name not in before and state != "success":
            raise StatementError(f"{source.name} did not hand slot {slot} over ({state}): {message}")


def _is_over(source: ValkeyNode, before: Iterable[str]) -> bool:
    ours = [state for name, (state, _) in _migrations(source).items() if name not in before]
    return bool(ours) and all(state in ("success", "failed", "cancelled") for state in ours)


def _migrations(node: ValkeyNode) -> dict[str, tuple[str, str]]:
    """State and message of each migration that the node remembers, by name."""
    found: dict[str, tuple[str, str]] = {}
    listed = node.execute("CLUSTER", "GETSLOTMIGRATIONS")
    assert isinstance(listed, list)
    for entry in listed:
        migration = fields(entry)
        found[migration["name"]] = (migration["state"], migration.get("message", ""))
    return found
