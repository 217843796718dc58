"""Locks for threads: taking, waiting, losing and giving back, on the loop thread's renewals."""

import asyncio
import contextvars
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import tenure
from tenure import ConfigurationError, LeaseLostError, LeaseStateError, LockNotAcquiredError
from tenure.errors import LossReason
from tenure.memory import InMemoryLockStore
from tenure.sync import Locks, current_lease
from tenure.testing import FaultError

PATIENCE_S = 60
Make = Callable[..., Locks]


def test_a_body_runs_under_a_lease_that_is_given_back(make: Make) -> None:
    locks, other = make(), make()
    with locks.hold("job") as lease:
        assert lease.held
        assert lease.token > 0
        assert current_lease() is lease
        assert 0 < lease.remaining <= 30
        assert other.try_acquire("job") is None
    assert current_lease() is None
    assert not lease.held
    assert lease.remaining == 0
    again = other.try_acquire("job")
    assert again is not None
    assert again.token > lease.token
    assert again.after == "released"
    assert again.release()
    assert not again.release()


def test_a_lease_that_was_acquired_is_a_guard_too(make: Make) -> None:
    locks = make()
    with locks.acquire("job") as lease:
        assert current_lease() is lease
    assert not lease.held
    with pytest.raises(LeaseStateError):
        lease.raise_unless_held()


def test_who_cannot_have_the_key_in_time_is_told(make: Make) -> None:
    locks, other = make(), make()
    with other.hold("job"):
        with pytest.raises(LockNotAcquiredError, match="job"):
            locks.acquire("job", wait=0.05)
        with pytest.raises(LockNotAcquiredError), locks.hold("job"):
            pass


def test_what_the_body_raises_is_not_hidden_and_the_key_is_free(make: Make) -> None:
    locks = make()
    with pytest.raises(ZeroDivisionError), locks.hold("job"):
        _ = 1 // 0
    assert locks.try_acquire("job") is not None


def test_threads_of_a_process_get_the_key_in_the_order_in_which_they_came(make: Make) -> None:
    locks, order, came = make(), [], 0
    with ThreadPoolExecutor(4) as pool:
        with locks.hold("job"):

            def work(number: int) -> None:
                with locks.hold("job", wait=PATIENCE_S):
                    order.append(number)

            calls = []
            for number in range(4):
                calls.append(pool.submit(work, number))
                came += 1
                until(lambda expected=came: locks.statistics().waiting == expected)  # type: ignore[misc]
        for call in calls:
            call.result(PATIENCE_S)
    assert order == [0, 1, 2, 3]


def until(condition: Callable[[], bool]) -> None:
    """Wait until *condition* is true, which another thread sees to."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_a_counter_that_threads_add_to_under_a_lock_loses_nothing(make: Make) -> None:
    locks, counted = make(), [0]

    def work() -> None:
        for _ in range(20):
            with locks.hold("counter", wait=PATIENCE_S):
                value = counted[0]
                time.sleep(0)
                counted[0] = value + 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted == [80]


def test_a_thread_is_refused_the_key_that_it_holds_and_another_thread_waits(make: Make) -> None:
    locks = make()
    with locks.hold("job"), pytest.raises(LeaseStateError, match="job"):
        locks.acquire("job", wait=PATIENCE_S)


def test_renewals_go_on_while_the_thread_sleeps_and_while_it_computes(make: Make) -> None:
    locks, other = make(ttl=1, store_timeout=0.5), make()
    with locks.hold("job") as lease:
        first = lease.deadline
        time.sleep(0.9)
        end = time.monotonic() + 0.9
        while time.monotonic() < end:
            _ = sum(range(1000))
        assert lease.held
        assert lease.deadline > first
        assert other.try_acquire("job") is None


def test_a_lost_lease_is_known_at_the_point_of_use_and_told_at_the_end(make: Make, shared: Any) -> None:
    locks = make(ttl=0.5, store_timeout=0.2)
    with pytest.raises(LeaseLostError), locks.hold("job") as lease:
        shared.roads[0].down()
        assert lease.lost.wait(PATIENCE_S)
        assert not lease.held
        assert lease.lost.is_set()
        assert lease.lost.reason in (LossReason.EXPIRED, LossReason.STALLED)  # as the machine has it
        with pytest.raises(LeaseLostError, match="job"):
            lease.raise_unless_held()
        with pytest.raises(LeaseLostError):
            lease.lost.raise_if_set()


def test_the_loss_of_a_lease_does_not_hide_what_the_body_raises(make: Make, shared: Any) -> None:
    locks = make(ttl=0.5, store_timeout=0.2)
    with pytest.raises(ZeroDivisionError), locks.hold("job") as lease:
        shared.roads[0].down()
        lease.lost.wait(PATIENCE_S)
        _ = 1 // 0


def test_a_wait_for_a_loss_ends_with_the_release(make: Make) -> None:
    locks = make()
    lease = locks.acquire("job")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lease.lost.wait, PATIENCE_S)
        assert not lease.lost.wait(0.01)
        lease.release()
        assert waiting.result(PATIENCE_S) is False


def test_max_hold_ends_a_lease_that_nobody_gives_back(make: Make) -> None:
    locks = make(ttl=10)
    with pytest.raises(LeaseLostError), locks.hold("job", max_hold=0.05) as lease:
        assert lease.lost.wait(PATIENCE_S)
        assert lease.lost.reason is LossReason.MAX_HOLD


def test_a_lease_may_be_given_back_by_another_thread(make: Make) -> None:
    locks = make()
    lease = locks.acquire("job")
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lease.release).result(PATIENCE_S)
    assert locks.try_acquire("job") is not None


def test_a_new_thread_has_the_current_lease_of_the_context_that_it_is_given(make: Make) -> None:
    locks, seen = make(), []
    with locks.hold("job") as lease:
        context = contextvars.copy_context()
        for target in (lambda: seen.append(current_lease()), lambda: context.run(lambda: seen.append(current_lease()))):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
    assert seen == [None, lease]


def test_an_error_of_the_driver_comes_as_it_is_and_nothing_stays_locked(make: Make, shared: Any) -> None:
    locks, other = make().open(), make()
    shared.roads[0].on("acquire").lose_reply()
    with pytest.raises(FaultError):
        locks.acquire("job")
    taken = other.acquire("job", wait=PATIENCE_S)
    taken.release()


def test_closing_loses_and_gives_back_what_is_held_and_twice_does_nothing(make: Make) -> None:
    locks, other = make(), make()
    lease = locks.acquire("job")
    locks.close()
    locks.close()
    assert lease.lost.reason is LossReason.CLOSED
    assert other.try_acquire("job") is not None
    with pytest.raises(LeaseStateError, match="closed"):
        locks.acquire("job")
    assert "closed" in repr(locks)


def test_one_that_was_never_used_opens_nothing(make: Make, shared: Any) -> None:
    locks = make()
    assert repr(locks) == "<Locks, opens at its first use>"
    assert shared.roads == []
    locks.close()
    assert shared.roads == []
    with pytest.raises(LeaseStateError, match="This Locks is closed"):
        locks.open()


def test_a_with_block_opens_it_once(make: Make, shared: Any) -> None:
    locks = make()
    with locks:
        assert len(shared.roads) == 1
    with pytest.raises(LeaseStateError, match="entered before"), locks:
        pass


def test_a_hold_is_entered_once(make: Make) -> None:
    hold = make().hold("job")
    with hold:
        pass
    with pytest.raises(LeaseStateError, match="entered before"), hold:
        pass


@pytest.mark.parametrize("store", [InMemoryLockStore(), 7, None])
def test_a_store_that_is_made_already_is_refused(store: Any) -> None:
    with pytest.raises(ConfigurationError, match="store's URL, or a callable"):
        Locks(store)


@pytest.mark.parametrize("options", [{"ttl": 0}, {"ttl": "soon"}, {"store_timeout": 60}, {"drain": -1}])
def test_a_wrong_setting_is_refused_where_it_is_written(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Locks("memory://", allow_in_memory=True, **options)


@pytest.mark.parametrize("key", ["", "a" * 501, 7])
def test_a_wrong_key_is_refused_before_anything_is_sent(make: Make, shared: Any, key: Any) -> None:
    locks = make()
    for call in (locks.try_acquire, locks.acquire, locks.hold):
        with pytest.raises(ConfigurationError):
            call(key)
    assert shared.roads == []


def test_a_listing_and_statistics_are_for_people(make: Make) -> None:
    locks = make(instance="shop-1")
    with locks.hold("job"):
        [listed] = locks.list_locks("jo")
        assert (listed.key, listed.instance) == ("job", "shop-1")
        assert locks.statistics().held == 1
    assert locks.list_locks() == []
    assert list(locks.check()) == []
    assert locks.ttl_s == 30


async def test_a_thread_whose_loop_runs_is_refused(make: Make) -> None:
    locks = make()
    with pytest.raises(LeaseStateError, match="event loop is running"):
        locks.acquire("job")
    lease = await asyncio.to_thread(locks.acquire, "job")
    with pytest.raises(LeaseStateError, match="event loop is running"):
        lease.release()
    assert await asyncio.to_thread(lease.release)


def test_a_hook_that_calls_its_locks_is_refused(make: Make) -> None:
    told: list[BaseException] = []

    def hook(event: object) -> None:
        try:
            made[0].try_acquire("another")
        except LeaseStateError as error:
            told.append(error)

    made = [make(hooks=[hook])]
    made[0].acquire("job").release()
    # Of the opening, too: its hook once waited for the thread that waited for the opening.
    assert len(told) >= 3
    assert all("A hook called its Locks" in str(error) for error in told)


def test_a_store_is_made_on_the_loop_where_it_is_used_and_left_there(shared: Any) -> None:
    seen: list[Any] = []

    class Store:
        def __init__(self) -> None:
            seen.append(asyncio.get_running_loop())
            self.inner = InMemoryLockStore()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        async def __aenter__(self) -> Any:
            seen.append("entered")
            return self.inner

        async def __aexit__(self, *_: object) -> None:
            seen.append("left")

    with Locks(Store, allow_in_memory=True, hooks=[]) as locks:
        locks.acquire("job").release()
    assert seen[1:] == ["entered", "left"]


def test_the_asynchronous_library_sees_the_current_lease_of_a_thread(make: Make) -> None:
    with make().hold("job") as lease:
        inner = tenure.current_lease()
        assert inner is not None
        assert inner.token == lease.token


# ------------------------------------------------------------------------------- processes of their own


def run(program: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr
    return ran.stdout


@pytest.mark.parametrize(
    ("module", "asks"), [("gevent.monkey", "is_module_patched"), ("eventlet.patcher", "is_monkey_patched")]
)
def test_threads_that_are_none_are_refused(module: str, asks: str) -> None:
    told = run(
        f"import sys, types; patcher = types.ModuleType({module!r}); patcher.{asks} = lambda name: True; "
        f"sys.modules[{module!r}] = patcher\n"
        "from tenure import ConfigurationError; from tenure.sync import Locks\n"
        "try: Locks('memory://', allow_in_memory=True).open()\n"
        "except ConfigurationError as error: print(error)\n"
    )
    assert f"{module.partition('.')[0]} has replaced the threads" in told


@pytest.mark.matrix
def test_the_end_of_a_process_gives_back_what_it_holds_and_waits_for_nothing(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path}/locks.db"
    held = run(
        f"from tenure.sync import Locks\nlocks = Locks({url!r}, ttl=30)\nlease = locks.acquire('job')\n"
        "print([lock.key for lock in locks.list_locks()])"
    )
    assert held == "['job']\n"
    assert run(f"from tenure.sync import Locks\nprint([*Locks({url!r}).list_locks()])") == "[]\n"


@pytest.mark.matrix
def test_a_fork_holds_nothing_and_opens_a_store_of_its_own_while_the_parent_goes_on(tmp_path: Any) -> None:
    program = f"""
import os
from tenure.sync import Locks
locks = Locks("sqlite:///{tmp_path}/locks.db", ttl=30)
lease = locks.acquire("job")
pid = os.fork()
if pid == 0:
    said = [lease.held, lease.release(), locks.try_acquire("job"), locks.acquire("child").held]
    os.write(1, f"{{said}}\\n".encode())
    locks.close()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
print([lease.held, [lock.key for lock in locks.list_locks()]])
lease.release()
locks.close()
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ran.stdout == "[False, False, None, True]\n[True, ['job']]\n", ran.stderr


@pytest.mark.matrix
def test_a_wait_that_is_interrupted_leaves_nothing_locked(tmp_path: Any) -> None:
    told = run(
        f"""
import os, signal, threading
from tenure.sync import Locks
held, waiting = (Locks("sqlite:///{tmp_path}/locks.db", ttl=30) for _ in range(2))
with held.hold("job"):
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        waiting.acquire("job", wait="1h")
    except KeyboardInterrupt:
        print("interrupted")
lease = held.acquire("job", wait=30)
print(lease.held)
held.close(); waiting.close()
"""
    )
    assert told == "interrupted\nTrue\n"
