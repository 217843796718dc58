"""Effects: an effect is committed once for a record, and a replay is the first answer, to the same client (H10)."""

from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from tenure.testing.history.report import Violation
from tenure.testing.history.timeline import Timeline

__all__ = ["effects_are_committed_once", "replays_are_the_first_answer"]


def effects_are_committed_once(line: Timeline) -> Iterator[Violation]:
    """
    H10: a record has one committed effect.

    An execution whose lock ended in flight, and that did not roll back, may leave a second one, by an attempt of a
    greater number, which told it that it was not the first. Such effects are counted apart; of one attempt there are
    never two.
    """
    for record, events in line.effects.items():
        attempts: set[int] = set()
        for event in events:
            if not event["committed"]:
                line.counts["effects rolled back"] += 1
                continue
            attempt = event["attempt"]
            if attempt in attempts:
                text = f"{event['process']!r} committed the effect of attempt {attempt}, which was committed before"
                yield Violation("H10", text, event["at"], record)
            elif attempts:
                line.counts["effects of a later attempt"] += 1
            attempts.add(attempt)
        line.counts["effects committed"] += len(attempts)


def replays_are_the_first_answer(line: Timeline) -> Iterator[Violation]:
    """
    H10: a replayed answer has the status and the body of the first full answer, and goes to the same principal.

    The first full answer is the first one below 400 that was not replayed: a conflict or a refusal is an answer about
    the record and not of it. Where the client never got one, the first replay stands for it.
    """
    for record, answers in line.answers.items():
        answers.sort(key=itemgetter("at"))
        replays = [answer for answer in answers if answer["replayed"]]
        line.counts["answers replayed"] += len(replays)
        line.counts["answers of an execution"] += len(answers) - len(replays)
        if not replays:
            continue
        full = [answer for answer in answers if not answer["replayed"] and answer["status"] < 400]
        # A later attempt has an answer of its own, and which one was stored is the store's to decide: then any of them.
        several = len({event["attempt"] for event in line.effects.get(record, ())}) > 1
        originals = (full if several else full[:1]) or replays[:1]
        first_replay = replays[0]
        for replay in replays:
            yield from _compared(record, replay, originals, first_replay)


def _compared(
    record: str, replay: dict[str, Any], originals: list[dict[str, Any]], first_replay: dict[str, Any]
) -> Iterator[Violation]:
    if all(replay["principal"] != original["principal"] for original in originals):
        text = f"{replay['process']!r} got a replay of what was answered to another principal"
        yield Violation("H10", text, replay["at"], record)
    elif all(_content(replay) != _content(original) for original in originals):
        text = f"{replay['process']!r} got a replay that differs from the first answer"
        yield Violation("H10", text, replay["at"], record)
    elif _content(replay) != _content(first_replay):
        text = f"{replay['process']!r} got a replay that differs from the first replay"
        yield Violation("H10", text, replay["at"], record)


def _content(answer: dict[str, Any]) -> tuple[int, str]:
    return answer["status"], answer["body"]
