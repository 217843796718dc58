"""Who may change what in the cat store: the application as it is served, on its real database."""

import asyncio
import contextlib
import hmac
import logging
import re
from collections.abc import AsyncIterator
from typing import Any, NamedTuple, cast

import httpx
import pytest
from litestar import Litestar, get
from litestar.routes import HTTPRoute
from sqlalchemy import text

from cat_store.admin.token import AdministratorsOnly
from cat_store.demo.shop import Shop
from cat_store.partners.accounting import Accounting
from cat_store.partners.app import create_app
from cat_store.partners.warehouse import Warehouse
from cat_store.replica import Replica, app_of, open_replica, server_of
from cat_store.settings import Settings, SettingsError
from cat_store.web.problems import problem
from cat_store.web.server import Listener

TOKEN = "canary-token-5150-of-an-administrator"  # secret of this test alone
PATIENCE_S = 15.0
EXPORT = "/admin/invoice-export"
PAUSE = "/admin/jobs/stock-reconciliation/pause"
KEY = {"Idempotency-Key": "8e03978e-40d5-43e8-bc93-6894a57f9324"}

OPEN_TO_ALL = {
    "/orders": "customers order; the shop has no accounts",
    "/live/actions/{action}": "buttons of the demo, for pages of its own origin (test_live_origins.py)",
}
"""What changes something and asks for no token, and why it may."""


class Served(NamedTuple):
    """A replica, and a client of its web server."""

    replica: Replica
    http: httpx.AsyncClient


def transport_to(app: Any) -> httpx.ASGITransport:
    return httpx.ASGITransport(app)


@pytest.fixture
async def served(postgres_url: str) -> AsyncIterator[Served]:
    partners = transport_to(create_app(Accounting(), Warehouse({})))
    settings = Settings(
        database_url=postgres_url,
        valkey_url="redis://127.0.0.1:1/0",
        accounting_url="http://127.0.0.1:1/accounting",
        warehouse_url="http://127.0.0.1:1/warehouse",
        instance="cat-store-1",
        port=0,
        admin_token=TOKEN,
    )
    async with contextlib.AsyncExitStack() as left:
        await left.enter_async_context(Shop(postgres_url))
        replica = await left.enter_async_context(open_replica(settings, partners=partners))
        listener = left.enter_context(Listener("127.0.0.1", 0))
        await left.enter_async_context(server_of(replica, listener))
        http = await left.enter_async_context(httpx.AsyncClient(base_url=listener.url, timeout=PATIENCE_S))
        yield Served(replica, http)


def token(*values: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"X-Admin-Token", value) for value in values]


WRONG = {
    "missing": token(),
    "empty": token(b""),
    "not ASCII": token("tökén".encode("latin-1")),
    "not UTF-8": token(b"\xff\xfe\xfd"),
    "its beginning": token(TOKEN[:-1].encode()),
    "its end": token(TOKEN[1:].encode()),
    "more of it": token(TOKEN.encode() + b"x"),
    "another case": token(TOKEN.upper().encode()),
    "as a bearer": [(b"Authorization", b"Bearer " + TOKEN.encode())],
    "twice": token(TOKEN.encode(), TOKEN.encode()),
    "right and wrong": token(TOKEN.encode(), b"wrong"),
    "wrong and right": token(b"wrong", TOKEN.encode()),
    "two in one line": token(TOKEN.encode() + b", " + TOKEN.encode()),
    "long": token(b"x" * 32_000),
}


async def paused(served: Served) -> Any:
    answer = await served.http.get("/admin/jobs", headers=token(TOKEN.encode()))
    return [job["paused"] for job in answer.json()]


async def test_whatever_is_sent_for_the_token_gets_one_answer_and_changes_nothing(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    answers = {}
    for name, headers in WRONG.items():
        for path in (PAUSE, EXPORT):
            answer = await served.http.post(path, headers=headers + [(k.encode(), v.encode()) for k, v in KEY.items()])
            kept = {header: answer.headers[header] for header in ("content-type", "content-length")}
            answers[name, path] = (answer.status_code, answer.content, kept)
    assert {status for status, _, _ in answers.values()} == {403}
    assert len({repr(answer) for answer in answers.values()}) == 1, answers
    assert await paused(served) == [False] * 3
    assert TOKEN not in caplog.text
    assert "Traceback" not in caplog.text


class Planted:
    """The middleware, as it might have been written."""

    def __init__(self) -> None:
        self._token = TOKEN

    async def compares_texts(self, scope: Any, receive: Any, send: Any, next_app: Any) -> None:
        sent = [value for name, value in scope["headers"] if name == b"x-admin-token"]
        # Of texts that are not ASCII it is a TypeError, so a 500 for whoever asks in the right way.
        if len(sent) != 1 or not hmac.compare_digest(sent[0].decode("latin-1"), self._token):
            raise problem(403, "administrators-only", "No.")
        await next_app(scope, receive, send)

    async def takes_the_first_line(self, scope: Any, receive: Any, send: Any, next_app: Any) -> None:
        sent = dict(reversed([(name, value) for name, value in scope["headers"] if name == b"x-admin-token"]))
        if not hmac.compare_digest(sent.get(b"x-admin-token", b""), self._token.encode()):
            raise problem(403, "administrators-only", "No.")
        await next_app(scope, receive, send)


@get("/")
async def something() -> str:
    return "for administrators"


@pytest.mark.parametrize("bug", [None, "compares_texts", "takes_the_first_line"])
async def test_planted_a_careless_middleware_answers_some_strangers_in_another_way(
    bug: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = AdministratorsOnly(TOKEN)
    if bug is not None:
        monkeypatch.setattr(AdministratorsOnly, "handle", getattr(Planted(), bug))
    app = Litestar([something], middleware=[guard], logging_config=None, openapi_config=None)
    transport = httpx.ASGITransport(cast("Any", app), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://replica") as http:
        answers = {(await http.get("/", headers=headers)).status_code for headers in WRONG.values()}
        assert (await http.get("/", headers=token(TOKEN.encode()))).status_code == 200
    assert answers == {403} if bug is None else answers > {403}


async def test_a_header_of_a_megabyte_is_refused_and_the_server_lives_on(served: Served) -> None:
    """By the web server, before the application sees it; a client that still sends may see the connection close."""
    with contextlib.suppress(httpx.TransportError):
        answer = await served.http.post(PAUSE, headers=token(b"x" * 1_000_000))
        assert answer.status_code in (400, 403, 431)
    assert await paused(served) == [False] * 3
    # One that got past a server which is more patient is refused as any other.
    transport = transport_to(app_of(served.replica))
    async with httpx.AsyncClient(transport=transport, base_url="http://replica") as direct:
        answers = [await direct.post(PAUSE, headers=token(value)) for value in (b"x" * 1_000_000, b"")]
    assert [answer.status_code for answer in answers] == [403, 403]
    assert answers[0].content == answers[1].content


def routes(replica: Replica) -> list[tuple[str, str]]:
    """Every path of the application with each of its methods."""
    found = []
    for route in app_of(replica).routes:
        if isinstance(route, HTTPRoute):
            found += [(route.path_format, method) for method in sorted(route.methods - {"OPTIONS"})]
    return sorted(found)


async def test_every_route_that_changes_something_asks_for_the_token_or_says_why_not(served: Served) -> None:
    changing = [(path, method) for path, method in routes(served.replica) if method not in ("GET", "HEAD")]
    assert len(changing) >= 6, "the export, three for jobs, orders, buttons"
    free = set()
    for path, method in changing:
        if not path.startswith("/admin/"):
            free.add(path)
            continue
        answer = await served.http.request(method, re.sub(r"\{name[^}]*\}", "stock-reconciliation", path), headers=KEY)
        assert (answer.status_code, answer.json()["type"]) == (403, "urn:cat-store:administrators-only"), path
    assert free == set(OPEN_TO_ALL)
    # Administrators are asked for it also to read, and a button is not pressed where there is no demo.
    for path in [path for path, method in routes(served.replica) if method == "GET" and path.startswith("/admin/")]:
        assert (await served.http.get(path)).status_code == 403
    assert (await served.http.post("/live/actions/kill", json={"replica": "cat-store-1"})).status_code == 404


KEPT = ("orders", "order_lines", "products", "job_controls", "tenure_locks", "tenure_idempotency")


async def contents(replica: Replica) -> dict[str, str]:
    """What is in the tables that a request may change; the live page's own is written by a heartbeat."""
    async with replica.engine.connect() as connection:
        there = set(
            (await connection.execute(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"))).scalars()
        )
        assert set(KEPT) <= there, there
        found = {}
        for table in KEPT:
            rows = await connection.execute(text(f"SELECT t::text FROM {table} t ORDER BY 1"))
            found[table] = repr(rows.scalars().all())
        return found


async def test_nothing_is_changed_by_reading(served: Served) -> None:
    before = await contents(served.replica)
    read = 0
    for path, method in routes(served.replica):
        if method == "GET" and path != "/live/stream":  # it does not end
            url = re.sub(r"\{[^}]*\}", "8e03978e-40d5-43e8-bc93-6894a57f9324", path)
            answer = await served.http.get(url, headers={"X-Admin-Token": TOKEN, **KEY})
            assert answer.status_code < 500, (url, answer.text)
            read += 1
    assert read >= 8
    assert await contents(served.replica) == before


async def test_what_administrators_did_is_in_the_log_with_the_job_and_without_the_token(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    def audited() -> list[tuple[str, str]]:
        said = [(str(getattr(record, "event", "")), str(getattr(record, "job", ""))) for record in caplog.records]
        return [one for one in said if one[0] in ("job.paused", "job.resumed")]

    async with served.replica.job_watch:
        for number, verb in enumerate(("pause", "resume"), 1):
            path = f"/admin/jobs/stock-reconciliation/{verb}"
            assert (await served.http.post(path, headers=token(TOKEN.encode()))).status_code == 200
            async with asyncio.timeout(PATIENCE_S):
                while len(audited()) < number:
                    await asyncio.sleep(0.01)
    assert audited() == [("job.paused", "stock-reconciliation"), ("job.resumed", "stock-reconciliation")]
    assert TOKEN not in caplog.text


async def test_what_an_administrator_asked_for_is_in_the_log_with_his_address_and_what_came_of_it(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    asked = [
        ("/admin/jobs/stock-reconciliation/pause", "pause", "stock-reconciliation", 200),
        ("/admin/jobs/stock-reconciliation/resume", "resume", "stock-reconciliation", 200),
        ("/admin/jobs/stock-reconciliation/step-down", "step_down", "stock-reconciliation", 409),
        ("/admin/jobs/a%0Ab/pause", "pause", "a\nb", 404),
        (EXPORT, "export_now", None, 200),
    ]
    for path, _, _, status in asked:
        headers = token(TOKEN.encode()) + [(name.encode(), value.encode()) for name, value in KEY.items()]
        assert (await served.http.post(path, headers=headers)).status_code == status, path
    # Reading changes nothing, and whoever is no administrator did nothing.
    await served.http.get("/admin/jobs", headers=token(TOKEN.encode()))
    await served.http.post(PAUSE, headers=token(b"wrong"))
    lines: list[Any] = [record for record in caplog.records if getattr(record, "event", "") == "admin.action"]
    assert [(one.action, one.job, one.status) for one in lines] == [tuple(rest) for _, *rest in asked]
    assert {one.client for one in lines} == {"127.0.0.1"}
    assert all("\n" not in one.getMessage() and "127.0.0.1" in one.getMessage() for one in lines)
    assert TOKEN not in caplog.text


async def test_the_token_is_compared_as_a_digest_so_that_its_length_makes_no_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[tuple[int, int]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return _compare_digest(one, other)

    monkeypatch.setattr("cat_store.admin.token.hmac.compare_digest", compare)
    app = Litestar([something], middleware=[AdministratorsOnly(TOKEN)], logging_config=None, openapi_config=None)
    transport = httpx.ASGITransport(cast("Any", app), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://replica") as http:
        for value in (b"", b"x", TOKEN.encode(), b"x" * 10_000):
            await http.get("/", headers=token(value))
    assert compared == [(32, 32)] * 4


_compare_digest = hmac.compare_digest

ENVIRONMENT = {
    "CAT_STORE_DATABASE_URL": "postgresql+asyncpg://db/shop",
    "CAT_STORE_VALKEY_URL": "redis://cache:6379/0",
    "CAT_STORE_ACCOUNTING_URL": "http://accounting",
    "CAT_STORE_WAREHOUSE_URL": "http://warehouse",
}


@pytest.mark.parametrize("short", ["x", "s3cret", "x" * 15])
def test_a_replica_does_not_start_with_a_token_that_can_be_guessed(short: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_environment({**ENVIRONMENT, "CAT_STORE_ADMIN_TOKEN": short})
    assert "CAT_STORE_ADMIN_TOKEN" in str(caught.value)
    assert short not in str(caught.value).replace("CAT_STORE_ADMIN_TOKEN", "")


def test_a_replica_starts_with_sixteen_characters_and_with_none() -> None:
    for sent, read in ((TOKEN, TOKEN), ("x" * 16, "x" * 16), ("", None), ("  ", None)):
        assert Settings.from_environment({**ENVIRONMENT, "CAT_STORE_ADMIN_TOKEN": sent}).admin_token == read


@pytest.mark.parametrize("wrong", ["two words-of-a-token", "tökén-of-sixteen-x", "x" * 201])
def test_a_token_that_no_header_carries_is_refused_and_not_shown(wrong: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_environment({**ENVIRONMENT, "CAT_STORE_ADMIN_TOKEN": wrong})
    assert wrong not in str(caught.value)
