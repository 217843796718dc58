"""HTML that escapes what it is given: text becomes HTML in one place, and nowhere by putting strings together."""

import html
from collections.abc import Iterable
from typing import Final, final

__all__ = ["EMPTY", "Child", "Html", "h", "join"]


@final
class Html(str):
    """HTML already: what `h` returns, and what it takes as it is."""

    __slots__ = ()


Child = Html | str | int | None | Iterable["Html | None"]

EMPTY: Final = Html("")
_VOID: Final = frozenset({"br", "wbr", "hr", "img", "input", "link", "meta"})


def h(tag: str, *children: Child, **attributes: str | int | bool | None) -> Html:
    """
    Make an element.

    Args:
        tag: Its name; a constant of the program, never something from outside.
        children: Elements as they are, everything else escaped; None is nothing.
        attributes: `class_` for class, `data_x` for data-x. True is an attribute without a value; None and False are
            none at all.
    """
    written = "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in _VOID:
        return Html(f"<{tag}{written}>")
    return Html(f"<{tag}{written}>{join(children)}</{tag}>")


def join(children: Iterable[Child]) -> Html:
    """Put children one after another."""
    return Html("".join(_child(child) for child in children))


def _child(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return child
    if isinstance(child, (str, int)):
        return html.escape(str(child), quote=True)
    return join(child)


def _attribute(name: str, value: str | int | bool | None) -> str:
    if value is None or value is False:
        return ""
    written = name.rstrip("_").replace("_", "-")
    return f" {written}" if value is True else f' {written}="{html.escape(str(value), quote=True)}"'
