"""From facts to what is shown: states, countdowns, and who is who. Pure but for `Steady`, which remembers."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Final, Literal, final
from zlib import crc32

from cat_store.live.demo_link import DemoState
from cat_store.live.facts import EventFact, Facts, PartnersFact, ReplicaFact, ShopFacts
from cat_store.live.origins import origin_of
from tenure.store import LockRecord

__all__ = [
    "HUES",
    "EventView",
    "LeaseView",
    "Picture",
    "Place",
    "ReplicaView",
    "Steady",
    "event_view",
    "hue_of",
    "paint",
]

State = Literal["up", "paused", "gone"]
Kind = Literal["lease", "run", "leadership", "slot"]

HUES: Final = 6
"""How many replicas the page can give a colour of their own."""

SILENT_AFTER_S: Final = 3.0
"""A replica tells of itself every second; on a busy machine a beat or two come late."""

_SHOWN_GONE_S: Final = 600.0
_SHOWN_LEASES: Final = 24
_LONGEST_NUMBER: Final = 9
_UP_STEP_MS: Final = 60_000
_SILENT_STEP_MS: Final = 5_000
_LEASE_JITTER_MS: Final = 250
_AGE_JITTER_MS: Final = 900


@final
class Steady:
    """
    Keeps a moment where it is while it is measured again and again, a few milliseconds off each time.

    What moves is sent to every viewer; a countdown that was not renewed has not moved.
    """

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, int]] = {}
        self._now: dict[str, tuple[int, int]] = {}

    def begin(self) -> None:
        """Begin a picture; what the one before did not ask for is forgotten."""
        self._last, self._now = self._now, {}

    def keep(self, name: str, moment_ms: float, jitter_ms: int, now_ms: int) -> tuple[int, int]:
        """Return the moment of before, if this one is no further from it than its jitter; and when it was told."""
        last = self._last.get(name)
        moved = last is None or abs(last[0] - moment_ms) > jitter_ms
        steady = (round(moment_ms), now_ms) if last is None or moved else last
        self._now[name] = steady
        return steady


@final
@dataclass(frozen=True, slots=True)
class Place:
    """
    Where the page is painted.

    Attributes:
        instance: The replica that paints it.
        ttl_ms: How long a lease lives without a renewal, in milliseconds.
        zone: The time zone of the shown times.
        locks: Whether this replica's jobs run under locks.
    """

    instance: str
    ttl_ms: int
    zone: tzinfo
    locks: bool = True


@final
@dataclass(frozen=True, slots=True)
class ReplicaView:
    """
    One replica.

    Attributes:
        instance: Its name.
        hue: The number of its colour, from 1.
        state: What it is.
        origin: Where browsers reach it; None where nobody knows.
        here: Whether it painted this page.
        locks: Whether its jobs run under locks.
        since_ms: Since when it is up, or silent; None where nobody knows.
        elapsed_ms: How long that is, about, for a reader without scripts.
        leads: The elections that it leads.
        holds: The other keys that it holds.
    """

    instance: str
    hue: int
    state: State
    origin: str | None
    here: bool
    locks: bool
    since_ms: int | None
    elapsed_ms: int
    leads: Sequence[str]
    holds: Sequence[str]


@final
@dataclass(frozen=True, slots=True)
class LeaseView:
    """
    One key, held or free.

    Attributes:
        key: The key.
        kind: A job's lease, a run lock, a leadership, or a slot.
        holder: Who holds it; where it is free, who was seen to take it last.
        hue: The number of the holder's colour.
        token: Its fencing token; where it is free, the last one that was seen.
        ends_at_ms: When it ends; None where it is free.
        left_ms: How long that was when it was read.
        ttl_ms: How long it lives without a renewal.
    """

    key: str
    kind: Kind
    holder: str
    hue: int
    token: int
    ends_at_ms: int | None
    left_ms: int
    ttl_ms: int


@final
@dataclass(frozen=True, slots=True)
class EventView:
    """One event: when, in words and for machines, and what."""

    id: int
    time: str
    iso: str
    instance: str
    hue: int
    level: str
    message: str
    times: int


@final
@dataclass(frozen=True, slots=True)
class Picture:
    """
    All that is shown.

    Attributes:
        place: Where it was painted.
        now_ms: When, on the painter's monotonic clock.
        replicas: The replicas, by name.
        leases: The keys; None where the store cannot list them, or locks are off here.
        unlocked: The replicas that are up without locks.
        shop: Orders and stock.
        partners: The partners' counters.
        demo: What the demo's supervisor knows; None where there is none.
        troubles: What could not be read.
        events: The last events, newest first.
    """

    place: Place
    now_ms: int
    replicas: Sequence[ReplicaView]
    leases: Sequence[LeaseView] | None
    unlocked: Sequence[str]
    shop: ShopFacts | None
    partners: PartnersFact | None
    demo: DemoState | None
    troubles: Sequence[str]
    events: Sequence[EventFact]


def paint(facts: Facts, place: Place, steady: Steady) -> Picture:
    """Make the picture of *facts*."""
    steady.begin()
    told = {} if facts.shared is None else {replica.instance: replica for replica in facts.shared.replicas}
    supervised: Mapping[str, State] = {} if facts.demo is None else facts.demo.replicas
    held: dict[str, list[str]] = {}
    for lock in facts.locks or ():
        held.setdefault(lock.instance, []).append(lock.key)
    replicas = [
        view
        for name in sorted(told.keys() | supervised.keys() | {place.instance})
        if (view := _replica(name, told.get(name), supervised.get(name), held.get(name, ()), facts, place, steady))
    ]
    return Picture(
        place=place,
        now_ms=facts.now_ms,
        replicas=replicas,
        leases=None if facts.locks is None else list(_leases(facts, told.values(), place, steady)),
        unlocked=[view.instance for view in replicas if view.state == "up" and not view.locks],
        shop=facts.shop,
        partners=facts.partners,
        demo=facts.demo,
        troubles=facts.troubles,
        events=() if facts.shared is None else facts.shared.events,
    )


def event_view(event: EventFact, zone: tzinfo) -> EventView:
    """Make what is shown of one event."""
    at = event.at.astimezone(zone)
    return EventView(
        id=event.id,
        time=at.strftime("%H:%M:%S"),
        iso=at.isoformat(timespec="milliseconds"),
        instance=event.instance,
        hue=hue_of(event.instance),
        level=event.level.lower(),
        message=event.message,
        times=event.times,
    )


def hue_of(instance: str) -> int:
    """Return the number of a replica's colour, the same on every page: by the number in its name, if it has one."""
    digits = instance[len(instance.rstrip("0123456789")) :]
    return 1 + ((int(digits) - 1) if 0 < len(digits) <= _LONGEST_NUMBER else crc32(instance.encode())) % HUES


def _state(told: ReplicaFact | None, supervised: State | None) -> State:
    if supervised is not None:
        return supervised  # who started a process knows at once what the others learn from its silence
    if told is None or told.stopped:
        return "gone"
    if told.silent_for_s <= SILENT_AFTER_S:
        return "up"
    return "paused" if told.connected else "gone"


def _replica(  # noqa: PLR0913, PLR0917 -- what one replica's card is made from
    name: str,
    told: ReplicaFact | None,
    supervised: State | None,
    held: Iterable[str],
    facts: Facts,
    place: Place,
    steady: Steady,
) -> ReplicaView | None:
    here = name == place.instance
    state: State = "up" if here else _state(told, supervised)
    if state == "gone" and supervised is None and told is not None and told.silent_for_s > _SHOWN_GONE_S:
        return None
    since_ms, elapsed_ms = None, 0
    if told is not None:
        age_s = told.up_for_s if state == "up" else told.silent_for_s
        since_ms, _ = steady.keep(f"{name} {state}", facts.shared_at_ms - age_s * 1000, _AGE_JITTER_MS, facts.now_ms)
        # Scripts count on from `since_ms`. For a reader without them this is told anew once in a while, and not at
        # every look: a card that is new every second would be sent every second.
        step_ms = _UP_STEP_MS if state == "up" else _SILENT_STEP_MS
        elapsed_ms = max(0, facts.now_ms - since_ms) // step_ms * step_ms
    leads = () if told is None or state == "gone" else sorted(told.leads)
    return ReplicaView(
        instance=name,
        hue=hue_of(name),
        state=state,
        origin=None if told is None else origin_of(told.address),
        here=here,
        locks=place.locks if told is None else told.locks,
        since_ms=since_ms,
        elapsed_ms=elapsed_ms,
        leads=leads,
        holds=sorted(key for key in held if key not in leads),
    )


def _leases(facts: Facts, told: Collection[ReplicaFact], place: Place, steady: Steady) -> Iterator[LeaseView]:
    elections = {key for replica in told for key in replica.leads}
    live = {lock.key: lock for lock in facts.locks or ()}
    last: dict[str, tuple[int, str]] = {}
    for replica in told:
        for key, token in replica.tokens.items():
            last[key] = max(last.get(key, (0, "")), (token, replica.instance))
    keys = sorted(live.keys() | last.keys())
    for key in keys[:_SHOWN_LEASES]:
        if (lock := live.get(key)) is not None:
            yield _held(lock, elections, facts, place, steady)
        else:
            token, holder = last[key]
            yield LeaseView(key, _kind(key, elections), holder, hue_of(holder), token, None, 0, place.ttl_ms)


def _held(lock: LockRecord, elections: set[str], facts: Facts, place: Place, steady: Steady) -> LeaseView:
    moment_ms = facts.locks_at_ms + lock.expires_in_ms
    ends_at_ms, told_ms = steady.keep(f"{lock.key} {lock.token}", moment_ms, _LEASE_JITTER_MS, facts.now_ms)
    return LeaseView(
        key=lock.key,
        kind=_kind(lock.key, elections),
        holder=lock.instance,
        hue=hue_of(lock.instance),
        token=lock.token,
        ends_at_ms=ends_at_ms,
        left_ms=max(0, ends_at_ms - told_ms),
        ttl_ms=place.ttl_ms,
    )


def _kind(key: str, elections: set[str]) -> Kind:
    if key in elections:
        return "leadership"
    if key.endswith(":owner"):
        return "lease"
    return "slot" if "@" in key else "run"
