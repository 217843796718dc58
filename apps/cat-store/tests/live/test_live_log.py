"""What a replica notes, and what it leaves out."""

import logging

from cat_store.live.log import LiveLog, Noted
from tenure import LossReason
from tenure.events import (
    Event,
    JobSkipped,
    JobStarted,
    LeadershipAcquired,
    LeadershipLost,
    LeaseAcquired,
    LeaseReleased,
    SkipReason,
)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def noted_of(*events: Event) -> list[Noted]:
    log = LiveLog()
    for event in events:
        log(event)
    return log.take(1000)


def test_events_that_tell_something_are_noted_in_tenures_own_words() -> None:
    (noted,) = noted_of(JobStarted("shop:export", "export:owner", 7))
    assert noted.message == 'shop:export runs on this instance (lease "export:owner", fencing token 7)'
    assert (noted.level, noted.kind) == ("INFO", "tenure.JobStarted")


def test_what_happens_with_every_run_is_not_noted() -> None:
    assert noted_of(LeaseAcquired("a", 1, 0.0, None), LeaseReleased("a", 1, 0.1)) == []


def test_skipped_ticks_are_told_once_in_a_while_with_their_number() -> None:
    clock = Clock()
    log = LiveLog(clock)
    skipped = JobSkipped("shop:export", "export", SkipReason.ELSEWHERE)
    for _ in range(20):  # forty seconds of ticks
        log(skipped)
        clock.now += 2
    assert [noted.times for noted in log.take(1000)] == [1, 8, 8]


def test_skips_of_two_jobs_and_for_two_reasons_are_told_apart() -> None:
    told = noted_of(
        JobSkipped("one", "one", SkipReason.ELSEWHERE),
        JobSkipped("one", "one", SkipReason.OVERLAP),
        JobSkipped("other", "other", SkipReason.ELSEWHERE),
    )
    assert len({noted.message for noted in told}) == len(told) == 3


def test_a_log_knows_what_its_replica_leads() -> None:
    log = LiveLog()
    log(LeadershipAcquired("feed", 7))
    assert log.leads == {"feed": 7}
    log(LeadershipLost("feed", 7, LossReason.EXPIRED, 3.0))
    assert log.leads == {}


def test_the_last_tokens_are_kept_of_a_bounded_number_of_keys_and_of_no_slot() -> None:
    log = LiveLog()
    for number in range(100):
        log(LeaseAcquired("job", number, 0.0, None))
        log(LeaseAcquired(f"order:{number}", number, 0.0, None))
        log(LeaseAcquired(f"job@{number}", number, 0.0, None))
    assert log.tokens["job"] == 99
    assert len(log.tokens) <= 40
    assert not any("@" in key for key in log.tokens)


def test_a_database_that_stays_away_costs_no_memory_without_end_and_it_is_told() -> None:
    log = LiveLog()
    for number in range(1500):
        log.note("INFO", "counted", str(number))
    taken = log.take(2000)
    assert taken[0].message == "500 events were dropped: the database did not take them"
    assert (taken[1].message, taken[-1].message) == ("500", "1499")


def test_what_could_not_be_written_comes_first_again() -> None:
    log = LiveLog()
    for number in range(4):
        log.note("INFO", "counted", str(number))
    log.put_back(log.take(2))
    assert [noted.message for noted in log.take(10)] == ["0", "1", "2", "3"]


def test_text_that_postgresql_refuses_is_made_good() -> None:
    log = LiveLog()
    log.note("INFO", "k" * 200, "a\x00b\ud800" + "c" * 1000)
    (noted,) = log.take(1)
    assert noted.message.startswith("ab?ccc")
    assert (len(noted.message), len(noted.kind)) == (500, 100)


def test_warnings_of_the_shop_are_noted_whether_or_not_they_tell_of_an_event() -> None:
    log = LiveLog()
    logger = logging.Logger("apart")  # noqa: LOG001 -- this test's alone
    logger.addHandler(log.handler)
    logger.warning("Locks are off")
    logger.info("Nothing to see")
    assert [noted.message for noted in log.take(10)] == ["Locks are off"]
