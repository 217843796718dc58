"""
How much of the store, and of a process, one client may have under idempotency keys.

A key that is new makes a record, which stays for its retention: whoever may send requests may fill the store with
them. And whether a key is new is known from the store alone, when the record has been made. So a request is refused
before the store is asked, by what this instance remembers of its client.
"""

import hashlib
import math
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Final, final

from tenure._durations import Duration, to_ms
from tenure.clock import Clock
from tenure.errors import ConfigurationError

__all__ = ["ClientQuota", "OverQuotaError", "Place", "Places"]

_MOST_IN_FLIGHT: Final = 10_000
_MOST_NEW_KEYS: Final = 100_000
_MOST_CLIENTS: Final = 10_000
_MOST_KEYS: Final = 200_000
"""Of all clients together; a key takes some 160 bytes, a client 560."""

_DIGEST_BYTES: Final = 16
_SHORTEST_PAUSE_S: Final = 1


class OverQuotaError(Exception):
    """
    The client has to wait.

    Attributes:
        retry_after_s: For how many whole seconds, at least one.
    """

    def __init__(self, left_s: float) -> None:
        super().__init__()
        self.retry_after_s = max(_SHORTEST_PAUSE_S, math.ceil(left_s))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuota:
    """
    What one client, a principal, may have under keys on one instance. What is over it gets 429 and a Retry-After.

    **The bound.** In any span of `per`, an instance begins the records of at most `new_keys` different keys of a
    client, and all instances together as many times that as there are of them. So a client has at most
    `instances * new_keys * (retention / per, rounded up, + 1)` records in the store while none of its requests takes
    longer than `per` (the longer of retention and grace). Each has at most its route's `max_response_bytes` of a body,
    and the headers that the handler gave it.

    **What is not refused for it.** A repeat of a key that this instance began within the last `per`: it makes no new
    record, and is answered as ever (the stored response, 409, 422). A repeat of an older one, or of one that another
    instance began, cannot be told from a new key without asking the store: it is refused like one for as long as the
    client is over `new_keys`, and answered afterwards. A 429 never means that nothing was done before.

    **What is not counted.** A record that was taken over, for it was there. A question to the store that failed: where
    it made a record, a release is sent behind it.

    **Memory.** At most 10 000 clients are remembered, and 200 000 keys of theirs, about 40 MB; beyond either, those who
    asked longest ago are forgotten and begin anew, but nobody whose requests are in flight. Their number is bounded by
    what the server accepts at once.

    With `UNSCOPED` all clients are one, and one of them can use up what all have.

    Attributes:
        in_flight: Requests under keys at one time: from the question to the store until the handler has returned, or
            until the request is known to be a repeat. One that waits for the first request (`wait`) has its place too.
        new_keys: New keys in a span of `per`.
        per: The span: seconds, a `timedelta`, or a string such as "1h". It slides; no moment begins a new one for all.

    Raises:
        ConfigurationError: A number is none from 1 to 10 000 (`in_flight`) or 100 000 (`new_keys`), or the span is
            none.
    """

    in_flight: int = 32
    new_keys: int = 1000
    per: Duration = "1h"

    def __post_init__(self) -> None:
        for name, value, most in (
            ("in_flight", self.in_flight, _MOST_IN_FLIGHT),
            ("new_keys", self.new_keys, _MOST_NEW_KEYS),
        ):
            if type(value) is not int or not 1 <= value <= most:
                raise ConfigurationError(f"{name} of a ClientQuota is a whole number from 1 to {most}.")
        to_ms(self.per, name="per")


@final
@dataclass(slots=True)
class _Client:
    """
    What is remembered of a client.

    Attributes:
        in_flight: How many requests have a place.
        asking: The new keys about which the store is being asked; each may turn out to make a record.
        begun: When each key's record was begun, the oldest first, in seconds on the clock.
    """

    in_flight: int = 0
    asking: Counter[bytes] = field(default_factory=Counter)
    begun: OrderedDict[bytes, float] = field(default_factory=OrderedDict)

    def taken(self) -> int:
        """Count the keys that are new, or may be."""
        return len(self.begun) + sum(key not in self.begun for key in self.asking)


@final
class Place:
    """One request's place among those of its client."""

    def __init__(self, places: "Places", client: _Client, key: bytes) -> None:
        self._places = places
        self._client = client
        self._key: bytes | None = key
        self._left = False

    def answered(self, *, began: bool) -> None:
        """Note the store's answer: whether a record was *begun*. Nothing where it was noted before."""
        key, self._key = self._key, None
        if key is None:
            return
        asking = self._client.asking
        asking[key] -= 1
        if asking[key] <= 0:
            del asking[key]
        if began:
            self._places.note(self._client, key)

    def leave(self) -> None:
        """Give the place back. Leaving twice does nothing."""
        if not self._left:
            self._left = True
            self.answered(began=False)
            self._client.in_flight -= 1


@final
class Places:
    """
    The places of all clients of an instance, for one event loop.

    Args:
        quota: What each may have.
        clock: Where the span is read.
    """

    def __init__(self, quota: ClientQuota, clock: Clock) -> None:
        self._quota = quota
        self._per_s = to_ms(quota.per, name="per") / 1000
        self._clock = clock
        self._clients: OrderedDict[bytes, _Client] = OrderedDict()
        self._keys = 0

    def take(self, principal: str | None, key: str) -> Place:
        """
        Take a place for a request, before the store is asked.

        Args:
            principal: Whose it is; None where all are one.
            key: What it is recorded under.

        Raises:
            OverQuotaError: The client has as many as it may.
        """
        client = self._client(_digest(principal or ""))
        self._forget_ended(client)
        if client.in_flight >= self._quota.in_flight:
            raise OverQuotaError(_SHORTEST_PAUSE_S)
        short = _digest(key)
        if short not in client.begun and short not in client.asking and client.taken() >= self._quota.new_keys:
            raise OverQuotaError(self._left_s(client))
        client.asking[short] += 1
        client.in_flight += 1
        self._forget_idle()
        return Place(self, client, short)

    def note(self, client: _Client, key: bytes) -> None:
        """Count a record that was begun."""
        self._keys += key not in client.begun
        client.begun[key] = self._clock.now()
        client.begun.move_to_end(key)

    def _client(self, name: bytes) -> _Client:
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = _Client()
        self._clients.move_to_end(name)
        return client

    def _left_s(self, client: _Client) -> float:
        """How long it takes until the oldest key counts no more, in seconds; not known where all are being asked."""
        oldest = next(iter(client.begun.values()), None)
        return _SHORTEST_PAUSE_S if oldest is None else oldest + self._per_s - self._clock.now()

    def _forget_ended(self, client: _Client) -> None:
        until = self._clock.now() - self._per_s
        while client.begun and next(iter(client.begun.values())) <= until:
            client.begun.popitem(last=False)
            self._keys -= 1

    def _forget_idle(self) -> None:
        """Forget clients, those first who asked longest ago, until there is room."""
        for _ in range(len(self._clients)):
            if len(self._clients) <= _MOST_CLIENTS and self._keys <= _MOST_KEYS:
                return
            name, client = next(iter(self._clients.items()))
            if client.in_flight:
                self._clients.move_to_end(name)
            else:
                del self._clients[name]
                self._keys -= len(client.begun)


def _digest(text: str) -> bytes:
    # Of the same length whatever a client sends, and nothing that could be read in a dump of the memory.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:_DIGEST_BYTES]
