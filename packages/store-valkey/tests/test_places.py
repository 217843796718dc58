"""Which grants are believed: a message may be late, come twice, or be somebody's who may publish."""

import asyncio

import pytest

from tenure.store import MAX_TOKEN
from tenure_valkey import places as places_module
from tenure_valkey.places import Places

LOCK, OWNER = b"locks:{job}", b"waiter"


def message(token: int, lock: bytes = LOCK, owner: bytes = OWNER) -> bytes:
    return b"%d\0%b\0%b" % (token, owner, lock)


async def heard(places: Places, lock: bytes = LOCK, owner: bytes = OWNER) -> int | None:
    granted = asyncio.create_task(places.granted(lock, owner))
    for _ in range(5):
        await asyncio.sleep(0)
    if not granted.done():
        granted.cancel()
        return None
    return granted.result()


async def test_a_grant_that_comes_before_the_place_is_known_counts_once_it_is() -> None:
    places = Places()
    places.ask(LOCK, OWNER)
    places.heard(message(8))
    assert await heard(places) is None
    places.taken(LOCK, OWNER, 7)
    assert await heard(places) == 8


async def test_who_listens_is_told_whatever_comes_first() -> None:
    places = Places()
    places.ask(LOCK, OWNER)
    granted = asyncio.create_task(places.granted(LOCK, OWNER))
    await asyncio.sleep(0)
    places.heard(message(8))
    places.taken(LOCK, OWNER, 7)
    places.heard(message(8))
    assert await granted == 8


async def test_a_message_about_an_earlier_grant_is_not_believed() -> None:
    """It is on its way while its owner, which polls, takes the lock, releases it, and waits again."""
    places = Places()
    places.ask(LOCK, OWNER)
    places.taken(LOCK, OWNER, 7)
    places.leave(LOCK, OWNER)
    places.ask(LOCK, OWNER)
    places.heard(message(8))
    places.taken(LOCK, OWNER, 9)  # somebody else holds it by now
    assert await heard(places) is None
    places.heard(message(8))
    assert await heard(places) is None
    places.heard(message(10))
    assert await heard(places) == 10


async def test_a_planted_bug_that_believes_every_message_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places_module._Place, "granted", property(lambda place: place.heard > 0))
    with pytest.raises(AssertionError):
        await test_a_message_about_an_earlier_grant_is_not_believed()


async def test_a_message_for_nobody_is_forgotten() -> None:
    places = Places()
    places.heard(message(8))
    places.ask(LOCK, OWNER)
    places.taken(LOCK, OWNER, 7)
    assert await heard(places) is None


async def test_a_message_is_for_one_owner_of_one_lock() -> None:
    places = Places()
    for lock, owner in ((LOCK, OWNER), (b"locks:{other}", OWNER), (LOCK, b"other")):
        places.ask(lock, owner)
        places.taken(lock, owner, 7)
    places.heard(message(8))
    assert await heard(places, b"locks:{other}") is None
    assert await heard(places, owner=b"other") is None
    assert await heard(places) == 8


@pytest.mark.parametrize(
    "words",
    [
        b"",
        b"8",
        b"8\0waiter",
        b"eight\0waiter\0locks:{job}",
        b"-8\0waiter\0locks:{job}",
        b"8" * 17 + b"\0waiter\0" + LOCK,
    ],
)
async def test_what_no_release_publishes_is_ignored(words: bytes) -> None:
    places = Places()
    places.ask(LOCK, OWNER)
    places.taken(LOCK, OWNER, 7)
    places.heard(words)
    places.heard(message(MAX_TOKEN + 1))
    assert await heard(places) is None


async def test_a_cancelled_listener_loses_no_grant() -> None:
    places = Places()
    places.ask(LOCK, OWNER)
    places.taken(LOCK, OWNER, 7)
    granted = asyncio.create_task(places.granted(LOCK, OWNER))
    await asyncio.sleep(0)
    places.heard(message(8))
    granted.cancel()  # in the moment in which it is told
    await asyncio.wait([granted])
    assert granted.cancelled()
    assert await heard(places) == 8


async def test_what_is_remembered_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places_module, "_MOST", 3)
    places = Places()
    for number in range(5):
        places.ask(LOCK, b"%d" % number)
        places.taken(LOCK, b"%d" % number, 7)
        places.heard(message(8, owner=b"%d" % number))
    assert [await heard(places, owner=b"%d" % number) for number in range(5)] == [None, None, 8, 8, 8]
