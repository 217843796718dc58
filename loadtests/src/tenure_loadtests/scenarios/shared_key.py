"""Two processes, one key: what hand-over and contended section have in common."""

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from tenure_loadtests.contenders.catalogue import Entry
from tenure_loadtests.scenarios.contract import Stage

__all__ = ["PROCESSES", "Turn", "take_turns"]

PROCESSES = 2

_GATHER_S = 0.3
_ANSWER_S = 60.0


@dataclass(frozen=True, slots=True)
class Turn:
    """
    One hold of the key, its times in seconds on the clock that the processes share.

    Attributes:
        who: The participant, the number of its process in front.
        asked: When it asked.
        acquired: When it had the key.
        gives_back: When it called release.
        given_back: When release returned.
    """

    who: tuple[int, int]
    asked: float
    acquired: float
    gives_back: float
    given_back: float


def take_turns(  # noqa: PLR0913 -- the size of the game, by name
    stage: Stage, entry: Entry, tasks: int, seconds: float, *, body_s: tuple[float, float], hand_on: bool
) -> tuple[list[Turn], Sequence[Mapping[str, float]]]:
    """
    Have *tasks* participants in two processes take turns on one key.

    Args:
        stage: Where the processes come from.
        entry: The contender.
        tasks: The participants, half of them in each process.
        seconds: For how long.
        body_s: The least and the greatest time for which one holds the key.
        hand_on: Whether one that has released waits until another had the key before it asks again.

    Returns:
        All turns in the order in which the key was had, and what each process used.

    Raises:
        ProtocolError: A process failed.
    """
    shares = [tasks // PROCESSES + (number < tasks % PROCESSES) for number in range(PROCESSES)]
    key = f"bench:turns:{tasks}"
    with ExitStack() as exits, _board() as board:
        workers = [exits.enter_context(stage.worker(entry, share)) for share in shares]
        for worker, share in zip(workers, shares, strict=True):
            worker.ask("gather", _ANSWER_S, key=key, tasks=share)
        start_at = time.perf_counter() + _GATHER_S
        for worker, share in zip(workers, shares, strict=True):
            worker.send(
                "turns",
                key=key,
                tasks=share,
                start_at=start_at,
                seconds=seconds,
                body_s=body_s,
                board=board,
                hand_on=hand_on,
            )
        answers = [worker.read(_ANSWER_S + seconds) for worker in workers]
    turns = [_turn(number, fields) for number, answer in enumerate(answers) for fields in answer["turns"]]
    return sorted(turns, key=lambda turn: turn.acquired), [answer["usage"] for answer in answers]


def _turn(process: int, fields: Sequence[Any]) -> Turn:
    who, asked, acquired, gives_back, given_back = fields
    return Turn((process, int(who)), asked, acquired, gives_back, given_back)


@contextmanager
def _board() -> Iterator[str]:
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(8))
        file.flush()
        yield file.name
