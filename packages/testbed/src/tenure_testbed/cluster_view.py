"""What the nodes of a Valkey cluster believe of each other, and whether they believe the same."""

import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SLOTS = 16384
# A node that is suspected, failed, not yet met or without an address is not one that clients can be sent to.
_DOUBTS = frozenset({"fail", "fail?", "handshake", "noaddr"})


def slot_of(key: str | bytes) -> int:
    """
    The slot of a key, 0 to 16383.

    Args:
        key: The key. What stands between its first brace and the next closing one decides alone, if that is
            anything: keys with the same tag share a slot.
    """
    raw = key.encode() if isinstance(key, str) else key
    before, opened, rest = raw.partition(b"{")
    del before
    tag, closed, _ = rest.partition(b"}")
    return binascii.crc_hqx(tag if opened and closed and tag else raw, 0) % SLOTS


@dataclass(frozen=True, slots=True)
class NodeView:
    """
    One line of `CLUSTER NODES`: what one node believes of another, or of itself.

    Attributes:
        id: The node's id in the cluster.
        port: Its port for clients.
        flags: `master` or `slave`, and `myself`, `fail?`, `fail`, `handshake`, ….
        follows: The id of its primary; None for a primary.
        epoch: Its configuration epoch: of two that claim a slot the higher one has it.
        slots: The slots that it serves, as ranges; none for a replica.
    """

    id: str
    port: int
    flags: frozenset[str]
    follows: str | None
    epoch: int
    slots: tuple[range, ...]

    @property
    def is_primary(self) -> bool:
        """Whether it is believed to be a primary."""
        return "master" in self.flags

    @property
    def is_myself(self) -> bool:
        """Whether it is the node that was asked."""
        return "myself" in self.flags

    @property
    def is_doubted(self) -> bool:
        """Whether it is suspected, failed or not yet met."""
        return bool(self.flags & _DOUBTS)

    def serves(self, slot: int) -> bool:
        """Whether the slot is one of its own."""
        return any(slot in each for each in self.slots)


def parse(text: str) -> list[NodeView]:
    """
    Read a reply of `CLUSTER NODES`.

    Args:
        text: The reply: a line a node, `id ip:port@bus,… flags primary ping pong epoch link slot slot …`.
    """
    return [_parse_line(line.split()) for line in text.splitlines() if line.strip()]


def _parse_line(words: list[str]) -> NodeView:
    name, address, flags, follows, _ping, _pong, epoch, _link, *slots = words
    return NodeView(
        id=name,
        port=int(address.partition("@")[0].rpartition(":")[2]),
        flags=frozenset(flags.split(",")),
        follows=None if follows == "-" else follows,
        epoch=int(epoch),
        # "[93->-id]" is a slot that is being moved; it counts where it is owned.
        slots=tuple(_range(each) for each in slots if not each.startswith("[")),
    )


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def foremost(views: Iterable[NodeView]) -> NodeView | None:
    """
    The primary among the nodes of one shard, by what each believes of itself; None when none is one.

    A primary that comes back believes in itself until it hears of its successor, whose epoch is higher.

    Args:
        views: What each of them believes of itself.
    """
    return max((view for view in views if view.is_primary), key=lambda view: view.epoch, default=None)


def agree(views: Mapping[int, Iterable[NodeView]]) -> bool:
    """
    Whether the nodes that were asked believe the same of each other, and serve every slot between them.

    Args:
        views: What each of them believes, by its port. Nodes that were not asked are dead, and what is believed
            of them does not matter.
    """
    beliefs = []
    for each in views.values():
        living = [view for view in each if view.port in views]
        if any(view.is_doubted for view in living):
            return False
        beliefs.append({view.id: (view.is_primary, view.follows, view.slots) for view in living})
    if not beliefs or any(belief != beliefs[0] for belief in beliefs):
        return False
    served = sum(len(each) for _, _, slots in beliefs[0].values() for each in slots)
    followed = {follows for _, follows, _ in beliefs[0].values() if follows is not None}
    return served == SLOTS and followed <= beliefs[0].keys()
