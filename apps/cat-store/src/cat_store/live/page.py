"""The document around the sections, its assets, and the headers that let nothing else run in it."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from string import Template
from typing import Final, final

from cat_store.live.frames import Frame
from cat_store.live.markup import Html, h, join
from cat_store.live.origins import neighbours

__all__ = ["ASSETS", "Asset", "asset_headers", "document", "document_headers"]


@final
@dataclass(frozen=True, slots=True)
class Asset:
    """A file that the page loads from its own replica."""

    content: bytes
    media_type: str
    version: str


def _asset(name: str, media_type: str) -> Asset:
    content = (resources.files("cat_store.live") / "assets" / name).read_bytes()
    return Asset(content, media_type, hashlib.sha256(content).hexdigest()[:12])


ASSETS: Final[Mapping[str, Asset]] = {
    "live.css": _asset("live.css", "text/css"),
    "live.js": _asset("live.js", "text/javascript"),
    "cat.svg": _asset("cat.svg", "image/svg+xml"),
}

_TEMPLATE: Final = Template(_asset("page.html", "text/html").content.decode())
_CONTENT_ONLY: Final = {"X-Content-Type-Options": "nosniff", "Cross-Origin-Resource-Policy": "same-origin"}


def asset_headers(asset: Asset, version: str | None) -> dict[str, str]:
    """Say how long an asset may be kept: for ever under its version, not at all under another's."""
    kept = "public, max-age=31536000, immutable" if version == asset.version else "no-cache"
    return {"Cache-Control": kept, **_CONTENT_ONLY}


def document_headers(frame: Frame, host: str) -> dict[str, str]:
    """
    Say what the page may do: load from its own replica, read from the others, and nothing else.

    Args:
        frame: What is shown.
        host: What the browser asked for.
    """
    connect = " ".join(["'self'", *neighbours(frame.addresses, host)])
    policy = (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; base-uri 'none'; "
        f"form-action 'none'; frame-ancestors 'none'; connect-src {connect}"
    )
    return {
        "Content-Security-Policy": policy,
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
        "Cross-Origin-Opener-Policy": "same-origin",
        **_CONTENT_ONLY,
    }


def document(frame: Frame, *, instance: str, host: str, demo: bool) -> str:
    """
    Write the page.

    Args:
        frame: What is shown.
        instance: The replica that serves it.
        host: What the browser asked for.
        demo: Whether there are buttons.
    """
    sections = {f"section_{name}": html for name, (html, _) in frame.sections.items()}
    return _TEMPLATE.substitute(
        sections,
        css=f"/live/assets/live.css?v={ASSETS['live.css'].version}",
        js=f"/live/assets/live.js?v={ASSETS['live.js'].version}",
        icon=f"/live/assets/cat.svg?v={ASSETS['cat.svg'].version}",
        body=_body_attributes(neighbours(frame.addresses, host), instance, frame.now_ms),
        instance=h("strong", instance, id="server"),
        events=join(html for _, html, _ in frame.events),
        demo_hidden=Html("" if demo else " hidden"),
    )


def _body_attributes(addresses: Sequence[str], instance: str, now_ms: int) -> Html:
    written = h("body", data_addresses=" ".join(addresses), data_instance=instance, data_now=now_ms)
    return Html(written.removeprefix("<body").removesuffix("></body>"))
