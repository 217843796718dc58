"""Who may read the stream, and who may press a button."""

import pytest

from cat_store.live.origins import PRESSED, neighbours, origin_of, readable_from, why_not

LIST = ["http://127.0.0.1:3001", "http://127.0.0.1:3002", "http://shop.example:3003"]


@pytest.mark.parametrize(
    ("address", "origin"),
    [
        ("http://127.0.0.1:3001", "http://127.0.0.1:3001"),
        ("HTTP://LocalHost:3001/", "http://localhost:3001"),
        ("https://shop.example:443", "https://shop.example"),
        ("http://[::1]:3001", "http://[::1]:3001"),
        ("http://127.0.0.1:3001/path", None),
        ("http://user:secret@127.0.0.1:3001", None),
        ("http://127.0.0.1:3001; script-src *", None),
        ("http://a b", None),
        ("http://x\r\nSet-Cookie: a", None),
        ("http://127.0.0.1:99999", None),
        ("javascript:alert(1)", None),
        ("ftp://127.0.0.1", None),
        ("null", None),
        ("", None),
    ],
)
def test_an_address_becomes_an_origin_or_nothing(address: str, origin: str | None) -> None:
    assert origin_of(address) == origin


def test_only_replicas_on_loopback_or_on_the_asked_host_are_neighbours() -> None:
    assert neighbours(LIST, "127.0.0.1:3001") == LIST[:2]
    assert neighbours(LIST, "shop.example:3001") == LIST
    assert neighbours([*LIST, LIST[0], "no address"], "127.0.0.1:3001") == LIST[:2]


@pytest.mark.parametrize(
    ("origin", "may"),
    [
        ("http://127.0.0.1:3002", True),
        ("http://localhost:3002", True),
        ("http://127.0.0.1:4000", False),
        ("https://127.0.0.1:3002", False),
        ("http://shop.example:3003", False),  # another host than the one that was asked
        ("http://evil.example:3002", False),
        ("http://127.0.0.1.evil.example:3002", False),
        ("http://127.0.0.1:3002/", False),  # no browser writes it so
        ("null", False),
    ],
)
def test_the_stream_is_readable_from_the_replicas_and_from_nowhere_else(origin: str, may: bool) -> None:
    assert readable_from(origin, LIST, "127.0.0.1:3001") is may


GOOD = {"host": "127.0.0.1:3001", "origin": "http://127.0.0.1:3001", PRESSED: "1", "sec-fetch-site": "same-origin"}


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"host": "localhost:3001", "origin": "http://localhost:3001"},
        {"host": "shop.example:3003", "origin": "http://shop.example:3003"},
    ],
)
def test_a_button_on_a_replicas_own_page_is_pressed(changed: dict[str, str]) -> None:
    assert why_not(GOOD | changed, "http", LIST) is None


@pytest.mark.parametrize(
    "changed",
    [
        {PRESSED: ""},
        {"origin": "http://127.0.0.1:3002"},  # another replica's page
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": ""},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"host": "evil.example:3001", "origin": "http://evil.example:3001"},  # a name that points here
        {"host": "", "origin": ""},
    ],
)
def test_a_button_anywhere_else_is_refused(changed: dict[str, str]) -> None:
    assert why_not(GOOD | changed, "http", LIST) is not None
