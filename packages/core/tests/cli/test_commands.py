"""The `tenure` command: what it shows of a store, what it frees, and how it ends."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from tenure import LeaseLostError
from tenure.cli import app as application
from tenure.cli.addresses import Address
from tenure.cli.rows import age_s, plain_span, wall_clock_us
from tenure.errors import LossReason
from tenure.sync import Locks

PATIENCE_S = 60
Tenure = Callable[..., Any]


# ------------------------------------------------------------------------------------------------- check


def test_a_store_that_will_do_is_told_so(tenure: Tenure, url: str, locks: Locks) -> None:
    said = tenure("check", url)
    assert said.code == 0
    assert "Nothing was found: this store will do." in said.out
    shape = tenure("check", url, "--json").json
    assert (shape["ok"], shape["kind"], shape["reach"], shape["findings"]) == (True, "SqliteLockStore", "host", [])
    assert shape["round_trip_s"] > 0


def test_a_fatal_finding_ends_with_one_and_its_remedy(tenure: Tenure, tmp_path: Any) -> None:
    said = tenure("check", f"sqlite:///{tmp_path}/not-there/locks.db", "--json")
    assert said.code == 1
    [finding] = said.json["findings"]
    assert (finding["code"], finding["fatal"], finding["remedy"]) == ("directory-missing", True, "Make it.")
    shown = tenure("check", f"sqlite:///{tmp_path}/not-there/locks.db")
    assert "directory-missing" in shown.out
    assert "fatal" in shown.out


def test_a_warning_counts_under_strict_alone(tenure: Tenure, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert tenure("check", "sqlite:///locks.db").code == 0
    assert tenure("check", "sqlite:///locks.db", "--strict").code == 1
    assert tenure("check", "sqlite:///locks.db", "--idempotency", "--strict").code == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["check", "nowhere://a"], "nowhere"),
        (["check"], "No store is given"),
        (["check", "sqlite:////a.db", "more"], "a word too many"),
        (["show", "sqlite:////a.db"], "KEY is missing"),
        (["release", "sqlite:////a.db", "job"], "--token"),
        (["ls", "sqlite:////a.db", "--nonsense"], "--nonsense"),
        (["ls", "memory://"], "in memory"),
        (["no-such-command"], "no-such-command"),
        (["show", "sqlite:////a.db", ""], "key"),
        (["watch", "sqlite:////a.db", "--interval", "soon"], "interval"),
    ],
)
def test_wrong_usage_is_one_line_and_two(tenure: Tenure, words: list[str], told: str) -> None:
    said = tenure(*words)
    assert said.code == 2
    assert said.out == ""
    [line] = said.err.splitlines()
    assert line.startswith("tenure: ")
    assert told in line


def test_the_store_may_stand_in_a_variable(tenure: Tenure, url: str, locks: Locks, monkeypatch: Any) -> None:
    monkeypatch.setenv("TENURE_STORE", url)
    with locks.hold("job"):
        assert tenure("show", "job").code == 0


def test_every_command_has_its_help_and_the_list_has_every_command(tenure: Tenure) -> None:
    said = tenure()
    assert said.code == 0
    for name in (*application._OURS, "init-postgres"):
        assert name in said.out
        assert tenure(name, "--help").code == 0
    assert tenure("--version").out.startswith("tenure ")


# -------------------------------------------------------------------------------------------- ls and show


def test_what_is_held_is_listed_with_its_instance_and_never_with_its_owner(
    tenure: Tenure, url: str, locks: Locks
) -> None:
    assert "Nobody holds a lock here." in tenure("ls", url).out
    with locks.hold("invoices"), locks.hold("orders") as lease:
        [invoices, orders] = tenure("ls", url, "--json").json["locks"]
        assert (invoices["key"], orders["instance"], orders["token"]) == ("invoices", "shop-1", lease.token)
        assert 0 < orders["expires_in_s"] <= 30
        assert orders["age_s"] >= 0
        owner = next(record.owner for record in locks.list_locks("orders"))
        for said in (tenure("ls", url), tenure("ls", url, "--json"), tenure("show", url, "orders")):
            assert owner.partition(":")[2] not in said.out
        assert [lock["key"] for lock in tenure("ls", url, "--prefix", "ord", "--json").json["locks"]] == ["orders"]
    assert "with this prefix" in tenure("ls", url, "--prefix", "x").out


def test_a_key_is_shown_with_the_lease_of_its_job(tenure: Tenure, url: str, locks: Locks) -> None:
    free = tenure("show", url, "export", "--json")
    assert (free.code, free.json["held"], free.json["lock"], free.json["job"]) == (1, False, None, None)
    assert "is free" in tenure("show", url, "export").out
    with locks.hold("export:owner"):
        owned = tenure("show", url, "export", "--json")
        assert (owned.code, owned.json["held"], owned.json["job"]["instance"]) == (0, False, "shop-1")
    with locks.hold("export"):
        shown = tenure("show", url, "export")
        assert shown.code == 0
        assert "is held" in shown.out


def test_a_key_that_would_drive_a_terminal_is_shown_by_its_escapes(tenure: Tenure, url: str, locks: Locks) -> None:
    with locks.hold("red\x1b[31m"):
        assert "\x1b" not in tenure("ls", url).out
        assert "\\x1b" in tenure("ls", url).out


# ------------------------------------------------------------------------------------------------ release


def test_the_lock_that_was_seen_is_freed_and_its_holder_hears_of_it(tenure: Tenure, url: str) -> None:
    with Locks(url, ttl=1, store_timeout=0.5, instance="hangs", hooks=[]) as locks:
        with pytest.raises(LeaseLostError), locks.hold("job") as lease:
            assert tenure("release", url, "job", "--token", lease.token).code == 0
            assert lease.lost.wait(PATIENCE_S)
            assert lease.lost.reason is LossReason.REFUSED
        assert locks.list_locks() == []


def test_a_lock_that_moved_is_not_freed(tenure: Tenure, url: str, locks: Locks) -> None:
    with locks.hold("job") as lease:
        refused = tenure("release", url, "job", "--token", lease.token - 1, "--json")
        assert (refused.code, refused.json["why_not"]) == (1, "other-token")
        assert (refused.json["released"], refused.json["seen_token"]) == (False, lease.token)
        assert f"has token {lease.token}" in tenure("release", url, "job", "--token", lease.token - 1).err
        assert lease.held
    gone = tenure("release", url, "job", "--token", lease.token, "--json")
    assert (gone.code, gone.json["why_not"]) == (1, "free")


def test_who_acquires_between_the_look_and_the_release_keeps_the_lock(
    tenure: Tenure, url: str, locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tenure.cli import looking

    lease, taken = locks.acquire("job"), []
    find = looking.Look.find

    async def find_then_move(self: Any, key: str) -> Any:
        record = await find(self, key)
        assert record is not None
        await self.store.release(key, record.owner)
        taken.append(await self.store.acquire(key, "another-owner", 30_000))
        return record

    monkeypatch.setattr(looking.Look, "find", find_then_move)
    said = tenure("release", url, "job", "--token", lease.token, "--json")
    assert (said.code, said.json["why_not"]) == (1, "moved")
    assert [record.token for record in locks.list_locks("job")] == [taken[0].token]


# -------------------------------------------------------------------------------------------------- watch


def test_a_watch_prints_a_look_after_the_other_where_nobody_has_a_terminal(
    tenure: Tenure, url: str, locks: Locks
) -> None:
    with locks.hold("job"):
        looks = tenure("watch", url, "--count", 2, "--interval", "10ms", "--json").out.splitlines()
        assert [[lock["key"] for lock in json.loads(look)["locks"]] for look in looks] == [["job"], ["job"]]
        shown = tenure("watch", url, "--count", 1)
    assert (shown.code, "shop-1" in shown.out, "1 held" in shown.out) == (0, True, True)
    assert "nobody holds a lock" in tenure("watch", url, "--count", 1).out


@pytest.mark.matrix
def test_a_watch_ends_with_an_interrupt(start: Any, url: str, locks: Locks) -> None:
    watching = start("watch", url, "--json")
    assert json.loads(watching.stdout.readline())["locks"] == []
    watching.send_signal(signal.SIGINT)
    _, err = watching.communicate(timeout=PATIENCE_S)
    assert (watching.returncode, err) == (0, "")


# --------------------------------------------------------------------------------- secrets and surroundings


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://shop:hunter2@db:5432/shop", "postgresql://db:5432/shop"),
        ("valkey://:hunter2@cache:6379", "valkey://cache:6379"),
        ("valkey://cache:6379?password=hunter2", "valkey://cache:6379"),
        ("postgresql://shop:hunter2/x@y@db/shop", "postgresql://…"),
        ("postgresql://shop:hunter2?x@db/shop", "postgresql://…"),
    ],
)
def test_a_password_is_never_shown(url: str, shown: str) -> None:
    address = Address(url)
    assert address.shown == shown
    told = address.tell(RuntimeError(f"cannot reach {url} with hunter2 and shop-1:{'a1' * 16}"))
    assert "hunter2" not in told
    assert "a1a1" not in told
    assert "hunter2" not in repr(address)


def test_a_store_that_cannot_be_reached_is_two_and_tells_no_password(tenure: Tenure) -> None:
    said = tenure("ls", "postgresql://shop:hunter2@127.0.0.1:1/shop")
    assert said.code == 2
    assert "127.0.0.1:1/shop" in said.err
    assert "hunter2" not in said.err + said.out
    assert len(said.err.splitlines()) == 1


def test_a_token_that_is_no_clock_has_no_age() -> None:
    assert age_s(7) is None
    assert age_s(wall_clock_us() + 60_000_000) is None
    assert age_s(wall_clock_us() - 5_000_000) == pytest.approx(5, abs=2)


@pytest.mark.parametrize(
    ("seconds", "said"), [(4.2, "4.2s"), (187, "3m 07s"), (7500, "2h 05m"), (529_200, "6d 03h"), (0, "0.0s")]
)
def test_spans_are_said_as_people_read_them(seconds: float, said: str) -> None:
    assert plain_span(seconds) == said


def test_a_plugin_adds_a_command_and_its_failure_is_one_line(tenure: Tenure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "entry_points", lambda group: [EntryPoint("purr", f"{__name__}:purr", group)])
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    said = tenure("purr", "--loudly")
    assert (said.code, said.out) == (0, "purr, loudly: True\n")
    failed = tenure("purr")
    assert (failed.code, failed.err) == (1, "tenure: not without being asked\n")


def purr(*, loudly: bool = False) -> None:
    """Purr."""
    from tenure.cli.endings import NOT_SO, Stop

    if not loudly:
        raise Stop("not without being asked", NOT_SO)
    sys.stdout.write(f"purr, loudly: {loudly}\n")


@pytest.mark.matrix
def test_without_its_libraries_the_command_says_what_to_install() -> None:
    program = "import sys; sys.modules['typer'] = None\nfrom tenure.cli import main\nmain()"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 2
    assert ran.stderr == "tenure: the command needs typer, which is not installed: pip install 'tenure[cli]'\n"


@pytest.mark.matrix
def test_a_reader_that_goes_away_is_no_traceback(start: Any, url: str, locks: Locks) -> None:
    watching = start("watch", url, "--json", "--interval", "10ms")
    watching.stdout.readline()
    watching.stdout.close()
    assert watching.wait(PATIENCE_S) == 1
    assert watching.stderr.read() == ""
    watching.stdout = None


# ------------------------------------------------------------------------------------------- planted bugs


def test_a_release_that_looks_at_no_token_is_found(
    tenure: Tenure, url: str, locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tenure.cli import release

    sound = release.release_seen

    async def careless(look: Any, key: str, token: int) -> Any:
        record = await look.find(key)
        return await sound(look, key, record.token if record else token)

    monkeypatch.setattr(release, "release_seen", careless)
    with pytest.raises(AssertionError):
        test_a_lock_that_moved_is_not_freed(tenure, url, locks)


def test_an_error_that_tells_the_url_is_found(tenure: Tenure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Address, "tell", lambda self, error: f"{self.url}: {error}")
    with pytest.raises(AssertionError):
        test_a_store_that_cannot_be_reached_is_two_and_tells_no_password(tenure)
