"""The routes of the live page."""

from typing import Annotated, Any, Final

import msgspec
from litestar import Controller, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, QueryParameter
from litestar.response import Stream

from cat_store.live.actions import UnknownActionError
from cat_store.live.demo_link import DemoError
from cat_store.live.origins import readable_from, why_not
from cat_store.live.page import ASSETS, asset_headers, document, document_headers
from cat_store.live.part import Live
from cat_store.web.problems import problem

__all__ = ["LiveController"]

AnyRequest = Request[Any, Any, Any]
AssetVersion = Annotated[str | None, QueryParameter(name="v")]

_LONGEST_PRESS: Final = 1000
"""The longest body of a button's request, in bytes: a name has at most a hundred characters."""


class Press(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a button says besides its name."""

    replica: str | None = None


class Pressed(msgspec.Struct, frozen=True):
    """What happened."""

    message: str


class LiveController(Controller):
    """The page, its stream, its assets and its buttons. For people: none of it is in the API's description."""

    path = "/"
    include_in_schema = False

    @get("/")
    async def page(self, request: AnyRequest, live: NamedDependency[Live]) -> Response[str]:
        """Serve the page as it is now; it is complete without its script."""
        frame = await live.poller.fresh()
        host = request.headers.get("host", "")
        return Response(
            document(frame, instance=live.instance, host=host, demo=live.actions is not None),
            media_type="text/html",
            headers=document_headers(frame, host),
        )

    @get("/live/assets/{name:str}", sync_to_thread=False)
    def asset(self, name: FromPath[str], version: AssetVersion = None) -> Response[bytes]:
        """Serve one of the page's own files."""
        asset = ASSETS.get(name)
        if asset is None:
            raise problem(404, "unknown-asset", "The page has no such file.")
        return Response(asset.content, media_type=asset.media_type, headers=asset_headers(asset, version))

    @get("/live/stream")
    async def stream(self, request: AnyRequest, live: NamedDependency[Live]) -> Stream:
        """Tell what changes, as server-sent events, until the viewer goes or this replica stops."""
        if live.poller.ended or live.poller.full:
            raise problem(
                503, "no-stream", "This replica takes no more viewers. Ask the next one.", headers={"Retry-After": "5"}
            )
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "Vary": "Origin"}
        origin = request.headers.get("origin")
        if origin is not None and readable_from(origin, live.addresses, request.headers.get("host", "")):
            headers["Access-Control-Allow-Origin"] = origin
        return Stream(
            live.poller.stream(request.headers.get("last-event-id")),
            media_type="text/event-stream",
            headers=headers,
        )

    @post("/live/actions/{action:str}", status_code=200)
    async def press(self, request: AnyRequest, live: NamedDependency[Live], action: FromPath[str]) -> Pressed:
        """Press a button of the demo."""
        if live.actions is None:
            raise problem(404, "no-demo", "There are no buttons here: this is no demo.")
        headers = {name.lower(): value for name, value in request.headers.items()}
        if (reason := why_not(headers, request.url.scheme, live.addresses)) is not None:
            raise problem(403, "pressed-elsewhere", reason)
        press = _press_of(await request.body())
        try:
            return Pressed(await live.actions.press(action, press.replica))
        except UnknownActionError as error:
            raise problem(404, "unknown-action", str(error)) from None
        except DemoError as error:
            raise problem(error.status, "not-done", str(error)) from None


def _press_of(body: bytes) -> Press:
    try:
        if len(body) > _LONGEST_PRESS:
            raise msgspec.ValidationError("it is too long")
        return msgspec.json.decode(body, type=Press)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise problem(400, "invalid-body", f"The body is not what it should be: {error}.") from None
