"""
A holder that runs out of memory when it is told to: `python -m chaos.programs.hungry`, with the holder's arguments.

SIGUSR1 makes it take memory until it may have no more, and then it dies as at the hands of the kernel: at once, without
a line of its own being run.
"""

import asyncio
import logging
import os
import resource
import signal
from pathlib import Path

from chaos.programs import holder

_MORE_BYTES = 64 << 20
_BITE_BYTES = 4 << 20


def eat() -> None:
    """Take memory, beyond what is allowed."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + _MORE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    taken: list[bytearray] = []
    try:
        while True:
            taken.append(bytearray(_BITE_BYTES))
    except MemoryError:
        os.kill(os.getpid(), signal.SIGKILL)


async def main() -> None:
    """Hold, with an appetite."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, eat)
    await holder.main(holder.parse())


if __name__ == "__main__":
    logging.getLogger("tenure").setLevel(logging.ERROR)
    asyncio.run(main())
