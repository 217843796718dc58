"""
The lines to the nodes of a cluster, for valkey-glide: a batch of glide's fails as a whole when one node of it does not
answer in time, so each batch goes to one node. glide does not tell who serves what; the cluster does.
"""

import asyncio
import bisect
import contextlib
from binascii import crc_hqx
from collections.abc import Sequence
from typing import Any, Final, final

from tenure_valkey.glide_batches import Batches
from tenure_valkey.group import Line

__all__ = ["ClusterLines", "slot_of"]

_SLOTS: Final = 16384

_LOOK_AGAIN_S: Final = 60.0
"""
Slots move without a word to the caller: glide follows them. Until the next look the calls of a slot that moved travel
with those of its old node, and nothing else.
"""


@final
class ClusterLines:
    """
    The lines to the nodes of a cluster.

    Until it is known who serves what, and where the user may not ask (CLUSTER SLOTS), every call goes by itself.

    Args:
        client: glide's cluster client.
        abreast: How many groups may be under way to a node at once.
        alone: How many calls may be under way by themselves.
    """

    def __init__(self, client: Any, *, abreast: int, alone: int) -> None:
        self._client = client
        self._abreast = abreast
        self._starts: list[int] = []
        self._nodes: list[str] = []
        self._lines: dict[str, Line] = {}
        # glide routes each.
        self._alone = Line(self._batches(), abreast=alone, most_calls=1, can_give_up=False)
        self._looked_at_s: float | None = None
        self._looking: asyncio.Task[None] | None = None

    def line_of(self, keys: Sequence[bytes]) -> Line:
        """Return the line to the node that serves *keys*."""
        now_s = asyncio.get_running_loop().time()
        if self._looked_at_s is None or now_s - self._looked_at_s > _LOOK_AGAIN_S:
            self._look_soon()
        if not keys or not self._starts:
            return self._alone
        name = self._nodes[bisect.bisect_right(self._starts, slot_of(keys[0])) - 1]
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = Line(self._batches(), abreast=self._abreast, can_give_up=False)
        return line

    def _batches(self) -> Batches:
        return Batches(self._client, is_cluster=True, on_trouble=self._look_soon)

    def _look_soon(self) -> None:
        # Beside the calls, which it does not hold up: the node that is asked may be the one that does not answer.
        if self._looking is None or self._looking.done():
            loop = asyncio.get_running_loop()
            self._looked_at_s = loop.time()
            self._looking = loop.create_task(self._look())

    async def _look(self) -> None:
        from glide import RandomNode

        # Whatever comes instead of an answer: what was known stays, and the next trouble, or a minute, looks again.
        with contextlib.suppress(Exception):
            shards = await self._client.custom_command(["CLUSTER", "SLOTS"], route=RandomNode())
            found = sorted((int(start), _name(primary)) for start, _, primary, *_ in shards)
            self._starts, self._nodes = [start for start, _ in found], [name for _, name in found]


def _name(node: Sequence[Any]) -> str:
    host, port, *_ = node
    return f"{host.decode() if isinstance(host, bytes) else host}:{port}"


def slot_of(key: bytes) -> int:
    """Return the slot of *key*: of what stands in its first braces, if anything does, or of all of it."""
    _, opened, rest = key.partition(b"{")
    tag, closed, _ = rest.partition(b"}")
    return crc_hqx(tag if opened and closed and tag else key, 0) % _SLOTS
