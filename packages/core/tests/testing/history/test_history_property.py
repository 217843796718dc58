"""Properties: a history of a run that was right is accepted, however its lines lie in files; a wrong one is not."""

import contextlib
import json
import random
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.testing.history import HistoryError, check_event, check_history

TTL_S = 3.0
PROCESSES = ("a", "b", "c")


class Reference:
    """
    A serial run: one store, whose every step is atomic, asked by processes that keep the rules of a lease.

    What each of them saw is written down: when it asked, and when it heard. A call may be heard of late, or never.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now = 100.0
        self.lines: list[dict[str, Any]] = []
        self.locks: dict[str, tuple[str, int, float]] = {}
        self.tokens: dict[str, int] = {}
        self.leases: dict[str, tuple[str, str, int, float]] = {}
        self.free_at = dict.fromkeys(PROCESSES, 0.0)
        self.calls = dict.fromkeys(PROCESSES, 0)
        self.owners = 0
        self.tell("run", "a", topology="reference", ttl_s=TTL_S, retry_s=0.5, call_timeout_s=1.0)
        self.acquire("c", "first")

    def tell(self, what: str, process: str, *, at: float | None = None, **fields: Any) -> None:
        self.lines.append({"what": what, "at": self.now if at is None else at, "process": process, **fields})

    def send(self, process: str, op: str, key: str, owner: str) -> int:
        self.calls[process] += 1
        ttl = {} if op == "release" else {"ttl_ms": int(TTL_S * 1000)}
        number = self.calls[process]
        self.tell("invoke", process, call=number, op=op, key=key, owner=owner, **ttl)
        self.now += self.rng.uniform(0, 0.05)
        return number

    def hear(self, process: str, number: int, result: str, **rest: Any) -> None:
        """Write the answer down, later; the process does nothing else until then."""
        heard = self.now + self.rng.uniform(0, 0.3)
        self.free_at[process] = heard
        self.tell("return", process, at=heard, call=number, result=result, **rest)

    def live(self, key: str) -> tuple[str, int, float] | None:
        lock = self.locks.get(key)
        return lock if lock is not None and lock[2] > self.now else None

    def acquire(self, process: str, key: str) -> None:
        self.owners += 1
        owner = f"{self.owners:012x}"
        sent = self.now
        number = self.send(process, "acquire", key, owner)
        if self.live(key) is not None:
            self.hear(process, number, "no")
            return
        token = self.tokens[key] = self.tokens.get(key, 0) + self.rng.randint(1, 3)
        self.locks[key] = (owner, token, self.now + TTL_S)
        if self.owners > 1 and self.rng.random() < 0.2:
            self.hear(process, number, "unknown", error="ConnectionError")
            return
        self.hear(process, number, "ok", token=token)
        self.leases[process] = (key, owner, token, sent + TTL_S * 0.99)

    def step(self) -> None:
        self.now += self.rng.choice([0.01, 0.1, 0.5, 1.5])
        process = self.rng.choice(PROCESSES)
        if self.now < self.free_at[process]:
            return
        held = self.leases.get(process)
        if held is None:
            self.acquire(process, self.rng.choice(("first", "second")))
            return
        key, owner, token, until = held
        if self.now >= until:
            self.tell("lost", process, at=until, key=key, token=token, reason="expired")
            del self.leases[process]
            return
        getattr(self, self.rng.choice(["believe", "renew", "release"]))(process, key, owner, token, until)

    def believe(self, process: str, key: str, _: str, token: int, __: float) -> None:
        self.tell("believes", process, key=key, token=token)
        self.tell("write", process, resource=key, key=key, token=token, accepted=True)

    def renew(self, process: str, key: str, owner: str, token: int, until: float) -> None:
        sent = self.now
        number = self.send(process, "renew", key, owner)
        lock = self.live(key)
        if lock is None or lock[0] != owner:
            self.hear(process, number, "no")
            self.tell("lost", process, at=min(until, self.free_at[process]), key=key, token=token, reason="refused")
            del self.leases[process]
            return
        self.locks[key] = (owner, token, self.now + TTL_S)
        known = self.rng.random() < 0.7
        self.hear(process, number, "ok" if known else "unknown")
        if known and self.free_at[process] < until:
            self.leases[process] = (key, owner, token, sent + TTL_S * 0.99)

    def release(self, process: str, key: str, owner: str, token: int, _: float) -> None:
        self.tell("gave_back", process, key=key, token=token)
        number = self.send(process, "release", key, owner)
        lock = self.live(key)
        ours = lock is not None and lock[0] == owner
        if ours:
            del self.locks[key]
        self.hear(process, number, "ok" if ours else "no")
        del self.leases[process]


def serial_run(seed: int, steps: int) -> list[dict[str, Any]]:
    reference = Reference(random.Random(seed))
    for _ in range(steps):
        reference.step()
    return reference.lines


def in_files(lines: list[dict[str, Any]], rng: random.Random, files: int) -> list[list[dict[str, Any]]]:
    """Spread *lines* over files: each process writes in its own order, into one of them."""
    of = {process: rng.randrange(files) for process in PROCESSES}
    parts: list[list[dict[str, Any]]] = [[] for _ in range(files)]
    queues = {p: sorted((one for one in lines if one["process"] == p), key=lambda one: one["at"]) for p in PROCESSES}
    while any(queues.values()):
        process = rng.choice([name for name, queue in queues.items() if queue])
        parts[of[process]].append(queues[process].pop(0))
    return parts


@settings(derandomize=True, database=None, deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32), steps=st.integers(0, 150), files=st.integers(1, 4))
def test_a_serial_run_is_accepted_however_its_files_interleave(seed: int, steps: int, files: int) -> None:
    parts = in_files(serial_run(seed, steps), random.Random(seed), files)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.jsonl" for number in range(files)]
        for path, part in zip(paths, parts, strict=True):
            path.write_text("".join(json.dumps(event) + "\n" for event in part))
        check_history(paths).raise_if_broken()


@settings(derandomize=True, database=None, deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32), pick=st.integers(0, 10**6))
def test_a_token_that_is_given_twice_is_always_found(seed: int, pick: int) -> None:
    lines = sorted(serial_run(seed, 150), key=lambda one: one["at"])
    keys = {(one["process"], one["call"]): one["key"] for one in lines if one["what"] == "invoke"}
    grants = [one for one in lines if one["what"] == "return" and one.get("token")]
    of_key = [one for one in grants if keys[one["process"], one["call"]] == "first"]
    if len(of_key) < 2:
        return
    index = pick % (len(of_key) - 1) + 1
    of_key[index]["token"] = of_key[index - 1]["token"]
    assert "H1" in check_history(lines).broken_rules


VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text() | st.sampled_from(["invoke", "believes", "ok"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)
NAMES = st.sampled_from(["what", "at", "process", "key", "token", "call", "op"]) | st.text(max_size=3)


@settings(derandomize=True, database=None, deadline=None, max_examples=150)
@given(st.dictionaries(NAMES, VALUES, max_size=7) | VALUES)
def test_whatever_is_read_is_an_event_or_a_clear_error(event: Any) -> None:
    with contextlib.suppress(HistoryError):
        check_event(event)


@settings(derandomize=True, database=None, deadline=None, max_examples=150)
@given(st.binary(max_size=60))
def test_whatever_a_file_holds_is_a_history_or_a_clear_error(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.jsonl"
        path.write_bytes(content)
        with contextlib.suppress(HistoryError):
            check_history(path)
