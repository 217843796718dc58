"""One Sentinel: a Valkey server that watches others."""

from collections.abc import Mapping

from tenure_testbed.errors import ServerError
from tenure_testbed.ports import LOOPBACK
from tenure_testbed.resp import fields
from tenure_testbed.scratch import Scratch
from tenure_testbed.valkey import ValkeyServer
from tenure_testbed.valkey_program import Binary

# In milliseconds. Sentinels look at replicas every ten seconds by default, and tests wait for that many times.
_PERIODS: Mapping[str, int] = {"info-period": 500, "ping-period": 200, "ask-period": 200}
# Their greetings make Sentinels known to each other, so they are quick at first. Not for long: four of them after a
# replica was promoted, the Sentinels that had no part in it take it back, and the one that promoted it looks every
# second only whether it has happened.
_MEETING_MS = 100
_GREETING_MS = 500
_DOUBTS = frozenset({"s_down", "o_down", "disconnected"})


class Sentinel(ValkeyServer):
    """
    A Sentinel of this process's own (`valkey-server … --sentinel`); `Server` tells what holds for every server.

    What it knows of the others survives a restart.

    Args:
        name: What errors call it.
        binary: As in `ValkeyServer`.
        options: Its options for the group that it watches, such as `{"down-after-milliseconds": "1000"}`.
    """

    def __init__(self, *, name: str, binary: Binary, options: Mapping[str, str]) -> None:
        super().__init__(name=name, binary=binary)
        self._options = dict(options)
        self._watched = ""

    def watch(self, group: str, port: int, quorum: int) -> None:
        """
        Say what it watches, before its first start.

        Args:
            group: Name of the group, as clients ask for it.
            port: Port of the primary of the moment.
            quorum: How many Sentinels have to find a primary gone before it is.
        """
        lines = [f"sentinel monitor {group} {LOOPBACK} {port} {quorum}"]
        lines += [f"sentinel {option} {group} {value}" for option, value in self._options.items()]
        self._watched = "\n".join(lines)

    def start(self) -> None:
        """Start it; nothing happens when it runs. Returns when it serves."""
        with self._lock:
            super().start()
            # Not kept in its file, so every start needs it.
            self.execute("SENTINEL", "DEBUG", *(word for pair in _PERIODS.items() for word in pair))
            self.greet(often=False)

    def greet(self, *, often: bool) -> None:
        """Have it greet the others often, so that they meet quickly, or as seldom as a failover needs it."""
        self.execute("SENTINEL", "DEBUG", "publish-period", _MEETING_MS if often else _GREETING_MS)

    def primary_port(self, group: str) -> int | None:
        """The port of the primary that it sends clients to; None when it knows no such group."""
        reply = self.execute("SENTINEL", "GET-MASTER-ADDR-BY-NAME", group)
        return int(str(reply[1])) if isinstance(reply, list) else None

    def knows(self, group: str, *, replicas: int, sentinels: int) -> bool:
        """
        Whether it has found so many replicas of the group and so many Sentinels beside itself, and doubts none.

        A replica that it has not seen follow yet is a doubt: were that one promoted now, it would take that back.

        Args:
            group: Name of the group.
            replicas: How many replicas run.
            sentinels: How many other Sentinels run.
        """
        return self._undoubted("REPLICAS", group) >= replicas and self._undoubted("SENTINELS", group) >= sentinels

    def _undoubted(self, kind: str, group: str) -> int:
        listed = self.execute("SENTINEL", kind, group)
        assert isinstance(listed, list)
        found = [fields(entry) for entry in listed]
        return sum(map(_is_undoubted, found))

    def _furnish(self, scratch: Scratch) -> None:
        """Its file is written when its port is known, and is its own from then on."""

    def _arguments(self, port: int) -> list[str]:
        assert self._scratch is not None
        path = self._scratch.path / "sentinel.conf"
        if not path.exists() or self._port is None:
            if not self._watched:
                raise ServerError(f"{self.name} watches nothing: watch() comes before the first start().")
            home = self._scratch.path
            path.write_text(f"port {port}\nbind {LOOPBACK}\ndir {home}\n{self._watched}\n", encoding="utf-8")
        return [str(path), "--sentinel"]


def _is_undoubted(entry: Mapping[str, str]) -> bool:
    # Only servers have a role.
    return _DOUBTS.isdisjoint(entry["flags"].split(",")) and entry.get("role-reported", "slave") == "slave"
