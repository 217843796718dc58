"""
A contender's process: `python -m tenure_loadtests.worker SETUP`, where SETUP is a JSON object.

Its members: `contender` ("module:Class"), `options`, `address`, `servers` (process ids), `tasks`.
"""

import asyncio
import json
import os
import platform
import sys
from typing import IO, Any

from tenure_loadtests.contenders.contract import Address, load
from tenure_loadtests.worker.protocol import answer_line, error_line, read_command
from tenure_loadtests.worker.work import Work


async def serve(setup: dict[str, Any], answers: IO[str]) -> None:
    """Answer commands until the driver closes its end, or says `quit`."""

    def say(line: str) -> None:
        answers.write(line)
        answers.flush()

    contender = load(setup["contender"], Address.from_json(setup["address"]), setup["options"])
    await contender.open(setup["tasks"])
    work = Work(contender, setup["servers"])
    say(
        answer_line(
            {"versions": contender.versions(), "runtime": "python", "runtime_version": platform.python_version()}
        )
    )
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        try:
            command = read_command(line)
            if command.do == "quit":
                break
            say(answer_line(await work.do(command)))
        except Exception as error:  # noqa: BLE001 -- whatever a library raises is the driver's to report
            say(error_line(error))
    await contender.close()


def main() -> None:
    """Keep standard output for answers: what a library prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        asyncio.run(serve(json.loads(sys.argv[1]), answers))
    except Exception as error:
        answers.write(error_line(error))
        answers.flush()
        raise


if __name__ == "__main__":
    main()
