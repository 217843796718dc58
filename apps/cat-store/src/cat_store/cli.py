"""The command line: `cat-store demo`, `replica`, `partners` and `migrate`."""

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from cat_store.settings import Settings, SettingsError, read_one

__all__ = ["main"]

_FAILED = 1
_WRONG_SETTINGS = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Run one command.

    Returns:
        0 when it did what it was asked to do, 1 when it failed, 2 for wrong settings or arguments.
    """
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except SettingsError as error:
        return _fail(str(error), _WRONG_SETTINGS)
    except KeyboardInterrupt:
        return 130  # as a shell reports SIGINT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cat-store", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="play the whole story on servers and replicas of its own")
    demo.set_defaults(command=_demo)
    demo.add_argument("--headless", action="store_true", help="one line a scene instead of the live view")
    demo.add_argument(
        "--open", action="store_true", help="open the live page in a browser, and keep the shop running after the story"
    )
    demo.add_argument("--report", type=Path, metavar="FILE", help="write the measured facts as JSON")
    demo.add_argument("--ttl", type=float, default=3.0, metavar="SECONDS", help="how long a lease lives (%(default)s)")
    demo.add_argument("--tick", type=int, default=2, metavar="SECONDS", help="how often jobs fire (%(default)s)")
    demo.add_argument(
        "--store", default="postgres", help="where the locks are: postgres, valkey or valkey-cluster (%(default)s)"
    )

    replica = commands.add_parser("replica", help="run one replica; its settings are CAT_STORE_* variables")
    replica.set_defaults(command=_replica)

    partners = commands.add_parser("partners", help="run the accounting system and the warehouse")
    partners.set_defaults(command=_partners)
    partners.add_argument("--host", default="127.0.0.1")
    partners.add_argument("--port", type=int, default=3100)

    migrate = commands.add_parser("migrate", help="bring the database of CAT_STORE_DATABASE_URL to a revision")
    migrate.set_defaults(command=_migrate)
    migrate.add_argument("--to", default="head", metavar="REVISION", help='a revision, "head" or "base" (%(default)s)')
    migrate.add_argument("--catalogue", action="store_true", help="then add the products that the demo's shop sells")
    migrate.add_argument("--draft", metavar="MESSAGE", help="write a new migration from the models instead")
    return parser


def _demo(options: argparse.Namespace) -> int:
    # Imported here: a replica and the partners need neither the test bed nor the terminal.
    from cat_store.demo.options import DemoOptions
    from cat_store.demo.story import play

    try:
        wanted = DemoOptions(
            ttl_s=options.ttl,
            tick_s=options.tick,
            store=options.store,
            headless=options.headless,
            report=options.report,
            open_page=options.open,
        )
    except ValueError as error:
        return _fail(str(error), _WRONG_SETTINGS)
    return asyncio.run(play(wanted))


def _replica(_: argparse.Namespace) -> int:
    from cat_store import logs

    settings = Settings.from_environment()
    logs.configure(level=settings.log_level, form=settings.log_format, instance=settings.instance)
    from cat_store.replica import run

    return _attempt(lambda: asyncio.run(run(settings)))


def _partners(options: argparse.Namespace) -> int:
    from cat_store.partners.serve import serve

    serve(options.host, options.port)
    return 0


def _migrate(options: argparse.Namespace) -> int:
    from cat_store.database import migrate
    from cat_store.database.engine import create_engine
    from cat_store.database.fill import fill

    url = read_one("database_url")

    async def run() -> None:
        engine = create_engine(url)
        try:
            if options.draft is not None:
                await migrate.draft(engine, options.draft)
            else:
                await migrate.migrate(engine, options.to)
            if options.catalogue:
                await fill(engine)
        finally:
            await engine.dispose()

    return _attempt(lambda: asyncio.run(run()))


def _attempt(run: Callable[[], None]) -> int:
    """Turn what is wrong outside of the program into one line; a mistake in the program keeps its traceback."""
    from alembic.util import CommandError
    from redis.exceptions import RedisError
    from sqlalchemy.exc import DBAPIError

    from cat_store.database.migrate import SchemaError
    from cat_store.waiting import UnreachableError
    from cat_store.web.server import ListenError
    from tenure import ConfigurationError

    try:
        run()
    except (SchemaError, ConfigurationError, CommandError, ListenError, UnreachableError) as error:
        return _fail(str(error), _FAILED)
    except DBAPIError as error:
        return _fail(f"The database refused: {type(error.orig).__name__}. Look at CAT_STORE_DATABASE_URL.", _FAILED)
    except RedisError as error:
        return _fail(f"Valkey is not there: {type(error).__name__}. Look at CAT_STORE_VALKEY_URL.", _FAILED)
    except OSError as error:
        return _fail(f"The database is not there: {error.strerror or error}. Look at CAT_STORE_DATABASE_URL.", _FAILED)
    return 0


def _fail(message: str, code: int) -> int:
    sys.stderr.write(f"cat-store: {message}\n")
    return code
