"""
Becomes the command of `tenure run`, once the watchman knows of it.

A command that runs for even a moment before would outlive a tenure that is killed in that moment. So what tenure starts
is this file, which waits for a byte on the descriptor that it is given and then turns into the command, under the same
process id. Where tenure is gone before the byte comes, nothing was begun.

It runs without site-packages and imports nothing of tenure, so that it is there at once.
"""

import os
import signal
import sys

CANNOT_RUN = 126
NOT_FOUND = 127
"""As env(1), timeout(1) and every shell say it."""


def main() -> None:
    """Wait for the word, and become the command."""
    go, command = int(sys.argv[1]), sys.argv[2:]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if not os.read(go, 1):
        sys.exit(CANNOT_RUN)
    os.close(go)
    # Python ignores them, and what is ignored stays so in the command.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 -- the command that the caller asked for
    except FileNotFoundError:
        sys.stderr.write(f"tenure: The command {command[0]!r} was not found: see its spelling and PATH.\n")
        sys.exit(NOT_FOUND)
    except OSError as error:
        why = f"({error.strerror}): it has to be an executable of yours."
        sys.stderr.write(f"tenure: The command {command[0]!r} cannot be run {why}\n")
        sys.exit(CANNOT_RUN)


if __name__ == "__main__":
    main()
