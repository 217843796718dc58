"""The place in the lifespan: after what owns the store's client, so that leases are handed back while it is open."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from tenure.errors import ConfigurationError

__all__ = ["is_sqlalchemy", "move_in_front", "refuse_later_owners"]

_SQLALCHEMY: Final = frozenset({"SQLAlchemyPlugin", "SQLAlchemyInitPlugin"})
_SQLALCHEMY_PACKAGES: Final = ("advanced_alchemy.", "litestar.plugins.sqlalchemy")


def is_sqlalchemy(plugin: object) -> bool:
    """Whether it is advanced-alchemy's plugin, or a child of it; found by name, so that nothing is imported for it."""
    return any(
        one.__name__ in _SQLALCHEMY and one.__module__.startswith(_SQLALCHEMY_PACKAGES) for one in type(plugin).__mro__
    )


def refuse_later_owners(plugins: Iterable[object], ours: object, after: Sequence[type]) -> Sequence[object]:
    """
    Refuse to be listed before a plugin that owns the database.

    Lifespans are entered in the order of the plugins and left in the reverse: the engine would be disposed while
    leases are held, and they could be handed back through nothing.

    Args:
        plugins: The application's plugins, in their order.
        ours: The one of them that enters the locks.
        after: The types of further plugins that own a client.

    Returns:
        The settings of the databases that plugins own which are listed before.

    Raises:
        ConfigurationError: One is listed later.
    """
    listed = list(plugins)
    place = next((index for index, plugin in enumerate(listed) if plugin is ours), len(listed))
    owned = [config for plugin in listed[:place] if is_sqlalchemy(plugin) for config in _configs_of(plugin)]
    for plugin in listed[place + 1 :]:
        if isinstance(plugin, tuple(after)) or (is_sqlalchemy(plugin) and not _are_among(_configs_of(plugin), owned)):
            name = type(plugin).__name__
            raise ConfigurationError(
                f"TenurePlugin is listed before {name}, so {name} would close its connections before the leases are "
                f"handed back through them. List TenurePlugin after it: plugins=[{name}(...), TenurePlugin(...)]."
            )
    return owned


def move_in_front(managers: list[Any], ours: Any, owned: Sequence[object]) -> None:
    """
    Move the lifespans of the databases in front of ours.

    `SQLAlchemyPlugin` adds a second plugin behind all that are listed, which owns the engine. Its lifespan would be
    entered after ours although it was listed before; so it is moved to where it was listed.

    Args:
        managers: The application's lifespans, in their order.
        ours: The one of them that enters the locks.
        owned: The settings of the databases whose plugins are listed before ours.
    """
    place = managers.index(ours)
    late = [manager for manager in managers[place + 1 :] if _are_among([getattr(manager, "__self__", None)], owned)]
    rest = [manager for manager in managers[place:] if not any(manager is one for one in late)]
    managers[place:] = [*late, *rest]


def _are_among(some: Sequence[object], owned: Sequence[object]) -> bool:
    """Whether all of *some* are there, themselves: `SQLAlchemyPlugin` adds its second plugin with the same settings."""
    return all(any(one is other for other in owned) for one in some)


def _configs_of(plugin: Any) -> Sequence[object]:
    """Return the engines' settings of an advanced-alchemy plugin: each has a `lifespan` that disposes its engine."""
    config = plugin.config
    return list(config) if isinstance(config, Sequence) else [config]
