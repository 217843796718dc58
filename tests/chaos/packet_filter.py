"""Rules of iptables on the loopback interface: nodes of a cluster that do not hear of each other."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Self, final

from tenure_testbed import ValkeyNode


@final
class PacketFilter:
    """
    Rules on the loopback interface that drop packets between nodes, and none of a client's.

    They stand in a chain of this process's own, which is gone when it is left; chains of processes that were killed
    are swept away by the next one.
    """

    def __init__(self) -> None:
        pid = os.getpid()
        self._chain = f"{_CHAIN}{pid}"
        # A net of this process's own in 127.0.0.0/8, all of which is loopback: two runs do not cut each other.
        self._net = f"127.{100 + pid % 100}.{pid // 100 % 250}"
        self._addresses: dict[ValkeyNode, str] = {}

    @staticmethod
    def unavailable() -> str | None:
        """Why packets cannot be filtered here, or None where they can."""
        if sys.platform != "linux":
            return "packets between nodes are dropped by iptables, which is Linux's"
        if shutil.which("iptables") is None:
            return "packets between nodes are dropped by iptables, which is not installed"
        if _iptables("-S", "INPUT", check=False).returncode:
            return "packets between nodes are dropped by iptables, which needs root here"
        return None

    def __enter__(self) -> Self:
        self._sweep()
        _iptables("-N", self._chain)
        _iptables("-I", "INPUT", "1", "-i", "lo", "-j", self._chain)
        return self

    def __exit__(self, *_: object) -> None:
        _remove(self._chain)

    def address_for(self, node: ValkeyNode) -> str:
        """The address from which that node calls the others."""
        return self._addresses.setdefault(node, f"{self._net}.{len(self._addresses) + 1}")

    def isolate(self, node: ValkeyNode) -> None:
        """Cut *node* off from the other nodes, both ways. Whoever connects from 127.0.0.1 reaches it still."""
        own = self._addresses[node]
        bus = str(node.bus_port)
        self._drop("-s", own)
        self._drop("-d", own)
        self._drop("-p", "tcp", "--dport", bus)
        self._drop("-p", "tcp", "--sport", bus)
        self.stop_replication_from(node)

    def stop_replication_from(self, node: ValkeyNode) -> None:
        """Cut *node* off from its replicas; it is still in the cluster."""
        port = str(node.port)
        self._drop("-p", "tcp", "-s", f"{self._net}.0/24", "--dport", port)
        self._drop("-p", "tcp", "-d", f"{self._net}.0/24", "--sport", port)

    def heal(self) -> None:
        """Let everything through again."""
        _iptables("-F", self._chain)

    def _drop(self, *match: str) -> None:
        _iptables("-A", self._chain, *match, "-j", "DROP")

    @staticmethod
    def _sweep() -> None:
        for line in _iptables("-S").stdout.splitlines():
            made, _, chain = line.partition(" ")
            pid = chain.removeprefix(_CHAIN)
            if made == "-N" and chain.startswith(_CHAIN) and pid.isdigit() and not Path(f"/proc/{pid}").exists():
                _remove(chain)


_CHAIN = "tenure-chaos-"


def _remove(chain: str) -> None:
    _iptables("-D", "INPUT", "-i", "lo", "-j", chain, check=False)
    _iptables("-F", chain, check=False)
    _iptables("-X", chain, check=False)


def _iptables(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = ["iptables", "-w", "20", *words]
    return subprocess.run(command, check=check, capture_output=True, text=True, timeout=30)
