"""The events of a history, put together: which return belongs to which call, who held what, who was paused when."""

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, final

from tenure.testing.history.calls import Call, Grant, Key, Owner
from tenure.testing.history.reading import Events
from tenure.testing.history.spans import Fault, FaultTimes, Pauses, Runs

__all__ = ["Timeline", "lay_out"]

Event = dict[str, Any]


@final
@dataclass(slots=True, eq=False)
class Timeline:
    """
    A history that can be asked.

    Attributes:
        keys: What happened, by key.
        calls: Every call, as it was sent.
        runs: What was promised when.
        pauses: When each process did not run.
        deaths: When each process died.
        faults: Every fault.
        fault_times: The same, for questions of time.
        phases: The phases: when each began, and its name.
        writes: Writes by resource, as they were noted.
        effects: Effects by record.
        answers: Answers by record.
        unfounded: Beliefs in a lease that the process was never granted: events.
        odd: What does not fit together, by assumption: sentences.
        counts: How much of everything there was.
        figures: The longest and latest of what the rules bound, in seconds.
        longest_ttl_s: The longest ttl that each process asked for.
        last_own: When each process wrote for the last time itself.
        last_at: When the history ends.
        upsets: When a fault, a pause, a death or a start was seen, or the end of one.
        starts_empty: Whether nothing was locked, and no token drawn, before the history began.
    """

    starts_empty: bool = True
    keys: dict[str, Key] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    runs: Runs = field(default_factory=Runs)
    pauses: defaultdict[str, Pauses] = field(default_factory=lambda: defaultdict(Pauses))
    deaths: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    faults: list[Fault] = field(default_factory=list)
    fault_times: FaultTimes = field(default_factory=lambda: FaultTimes([]))
    phases: list[tuple[float, str]] = field(default_factory=list)
    writes: defaultdict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    effects: defaultdict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    answers: defaultdict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    unfounded: list[Event] = field(default_factory=list)
    odd: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    counts: Counter[str] = field(default_factory=Counter)
    figures: dict[str, float] = field(default_factory=dict)
    longest_ttl_s: dict[str, float] = field(default_factory=dict)
    last_own: dict[str, float] = field(default_factory=dict)
    last_at: float = -math.inf
    upsets: list[float] = field(default_factory=list)

    def longest(self, name: str, seconds: float) -> None:
        """Keep *seconds* as the figure *name*, if no longer one was seen."""
        if seconds > self.figures.get(name, -math.inf):
            self.figures[name] = seconds

    def running_s(self, process: str, begins: float, ends: float) -> float:
        """How long *process* ran between two moments, in seconds."""
        pauses = self.pauses.get(process)
        return max(0.0, ends - begins) if pauses is None else pauses.running_s(begins, ends)


def lay_out(events: Events, *, starts_empty: bool) -> Timeline:
    """Put *events* together."""
    line = Timeline(starts_empty=starts_empty)
    layout = _Layout(line)
    readers = layout.readers()
    last_own = line.last_own
    for event in events.events:
        readers[event["what"]](event)
        if "by" not in event:
            last_own[event["process"]] = event["at"]
    line.odd["time"] = [f"the time of {writer!r} goes back to {at:.6f}" for writer, at in events.backwards]
    line.counts["torn lines"] = events.torn
    if events.events:
        line.last_at = events.events[-1]["at"]
    layout.finish(events)
    return line


@final
class _Layout:
    """The pass over the events."""

    def __init__(self, line: Timeline) -> None:
        self._line = line
        self._open: defaultdict[str, dict[int, Call]] = defaultdict(dict)
        self._numbers: defaultdict[str, set[int]] = defaultdict(set)
        self._grants: dict[tuple[str, str, int], Grant] = {}
        self._faults: defaultdict[tuple[str, str | None], list[Fault]] = defaultdict(list)

    def readers(self) -> dict[str, Callable[[Event], None]]:
        """Who reads which event."""
        line = self._line

        def counted(_: Event) -> None: ...

        return {
            "run": line.runs.add,
            "phase": lambda event: line.phases.append((event["at"], event["name"])),
            "invoke": self._invoke,
            "return": self._return,
            "believes": self._believes,
            "enter": self._believes,
            "exit": counted,
            "lost": self._lost,
            "gave_back": self._gave_back,
            "write": lambda event: line.writes[event["resource"]].append(event),
            "paused": self._paused,
            "resumed": self._resumed,
            "died": self._died,
            "started": self._started,
            "fault": self._fault,
            "healed": self._healed,
            "effect": lambda event: line.effects[event["record"]].append(event),
            "answer": lambda event: line.answers[event["record"]].append(event),
        }

    # ------------------------------------------------------------------------------------ calls

    def _invoke(self, event: Event) -> None:
        process, number, at = event["process"], event["call"], event["at"]
        name = event["key"]
        key = self._line.keys.get(name)
        if key is None:
            key = self._line.keys[name] = Key(name)
        owner = key.owners.get(event["owner"])
        if owner is None:
            owner = key.owners[event["owner"]] = Owner(event["owner"], key)
        op = event["op"]
        call = Call(process, op, owner, (event.get("ttl_ms") or 0) / 1000, at)
        call.place_s = (event.get("place_ms") or 0) / 1000
        if number in self._numbers[process]:
            self._line.odd["numbers"].append(f"{process!r} has two calls of the number {number}")
        self._numbers[process].add(number)
        self._open[process][number] = call
        self._line.calls.append(call)
        owner.calls.append(call)
        if op == "acquire":
            key.acquires.append(call)
            owner.releasing = math.inf
        elif op == "release":
            owner.releasing = at
            for grant in owner.grants:
                grant.gave_back = min(grant.gave_back, at)
        if call.ttl_s > self._line.longest_ttl_s.get(process, 0.0):
            self._line.longest_ttl_s[process] = call.ttl_s

    def _return(self, event: Event) -> None:
        call = self._open[event["process"]].pop(event["call"], None)
        if call is None and not self._line.starts_empty:
            return  # it was sent before this history began
        if call is None:
            problem = f"{event['process']!r} has a return of its call {event['call']} that it had not sent"
            self._line.odd["numbers"].append(problem)
            return
        call.returned, call.result = event["at"], event["result"]
        if call.result == "no" and call.op == "renew":
            for grant in call.owner.grants:
                grant.refused = min(grant.refused, call.returned)
        elif call.result == "ok" and call.op == "acquire":
            call.follows = event.get("after") is not None
            self._granted(call, event.get("token"))
        elif call.result == "ok" and call.op == "renew" and call.owner.grants:
            call.owner.grants[-1].confirmed.append((call.returned, call.invoked, call.ttl_s))

    def _granted(self, call: Call, token: int | None) -> None:
        if token is None:
            self._line.odd["numbers"].append(
                f"{call.process!r} was granted a key at {call.returned:.6f} without a token"
            )
            call.result = "unknown"
            return
        call.token = token
        for grant in call.owner.grants:
            if grant.token == token:
                grant.confirmed.append((call.returned, call.invoked, call.ttl_s))
                return
        grant = Grant(call, token, call.returned)
        grant.gave_back = call.owner.releasing
        call.owner.grants.append(grant)
        call.owner.key.grants.append(grant)
        self._grants[call.process, call.owner.key.name, token] = grant

    # ----------------------------------------------------------------------------------- beliefs

    def _grant_of(self, event: Event) -> Grant | None:
        """The grant that a process speaks of, or None where it was never granted."""
        return self._grants.get((event["process"], event["key"], event["token"]))

    def _believes(self, event: Event) -> None:
        grant = self._grant_of(event)
        if grant is None:
            self._line.unfounded.append(event)
        else:
            grant.last_belief = event["at"]

    def _lost(self, event: Event) -> None:
        grant = self._grant_of(event)
        if grant is not None:
            grant.lost = min(grant.lost, event["at"])

    def _gave_back(self, event: Event) -> None:
        grant = self._grant_of(event)
        if grant is not None:
            grant.gave_back = min(grant.gave_back, event["at"])

    # ----------------------------------------------------------------------------------- nemesis

    def _paused(self, event: Event) -> None:
        self._line.upsets.append(event["at"])
        self._line.pauses[event["process"]].begin(event["at"])

    def _resumed(self, event: Event) -> None:
        self._line.upsets.append(event["at"])
        if not self._line.pauses[event["process"]].end(event["at"]):
            self._line.odd["faults"].append(f"{event['process']!r} was resumed at {event['at']:.6f} and was not paused")

    def _died(self, event: Event) -> None:
        process, at = event["process"], event["at"]
        self._line.upsets.append(at)
        self._line.pauses[process].end(at)
        self._line.deaths[process].append(at)
        for call in self._open[process].values():
            call.cut = min(call.cut, at)

    def _started(self, event: Event) -> None:
        process = event["process"]
        self._line.upsets.append(event["at"])
        # What was under way ended with the process, whether or not somebody saw it die; and it numbers its calls anew.
        for call in self._open.pop(process, {}).values():
            call.cut = min(call.cut, event["at"])
        self._numbers.pop(process, None)

    def _fault(self, event: Event) -> None:
        self._line.upsets.append(event["at"])
        fault = Fault(event["fault"], event["kind"], event["at"])
        self._line.faults.append(fault)
        self._faults[event["fault"], event.get("scope")].append(fault)

    def _healed(self, event: Event) -> None:
        self._line.upsets.append(event["at"])
        on = self._faults[event["fault"], event.get("scope")]
        if on:
            on.pop(0).healed = event["at"]
        else:
            self._line.odd["faults"].append(f"{event['fault']!r} was healed at {event['at']:.6f} and was not on")

    # ---------------------------------------------------------------------------------- the end

    def finish(self, events: Events) -> None:
        """Count, and set what only the whole history tells."""
        line = self._line
        line.fault_times = FaultTimes(line.faults)
        for process, pauses in line.pauses.items():
            if pauses.is_open:
                line.odd["faults"].append(f"{process!r} was paused and neither resumed nor died")
        for fault in line.faults:
            if fault.healed == math.inf:
                line.odd["faults"].append(f"{fault.name!r} began at {fault.began:.6f} and was not healed")
        for key in line.keys.values():
            for grant in key.grants:
                grant.count_deadline(line.runs.at(grant.granted).margin)
                deaths = line.deaths.get(grant.process)
                if deaths:
                    index = bisect_left(deaths, grant.granted)
                    grant.died = deaths[index] if index < len(deaths) else math.inf
        self._count(events)

    def _count(self, events: Events) -> None:
        line = self._line
        kinds = Counter(event["what"] for event in events.events)
        line.counts.update(
            {
                "events": len(events.events),
                "processes": len({event["process"] for event in events.events}),
                "keys": len(line.keys),
                "calls": len(line.calls),
                "grants": sum(len(key.grants) for key in line.keys.values()),
                "losses": kinds["lost"],
                "given back": kinds["gave_back"],
                "beliefs": kinds["believes"] + kinds["enter"],
                "pauses": kinds["paused"],
                "deaths": kinds["died"],
                "faults": kinds["fault"],
                "writes accepted": 0,
                "writes refused": 0,
            }
        )
        line.counts.update(f"{call.op} {call.result}" for call in line.calls)
        line.counts.update(f"fault {fault.kind}" for fault in line.faults)
