"""The engine and the sessions of one replica."""

from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

__all__ = ["Sessions", "create_engine", "create_sessions"]

Sessions = async_sessionmaker[AsyncSession]

# Two jobs and their neighbours need a handful. The drivers' own bounds are 30 s (pool) and 60 s (connect): a job
# that hangs that long at a dead database would outlast several of its ticks.
_POOL_SIZE = 5
_WAIT_S = 5


def create_engine(url: str) -> AsyncEngine:
    """
    Create the engine of one replica; nothing is opened yet.

    Parameters are hidden from errors and logs, for they hold customers' names.
    """
    return create_async_engine(
        url,
        hide_parameters=True,
        pool_size=_POOL_SIZE,
        pool_timeout=_WAIT_S,
        pool_pre_ping=True,
        connect_args={"timeout": _WAIT_S},
    )


def create_sessions(engine: AsyncEngine) -> Sessions:
    """Create the maker of sessions. What was read stays readable after the commit: jobs log and upload it then."""
    return async_sessionmaker(engine, expire_on_commit=False)
