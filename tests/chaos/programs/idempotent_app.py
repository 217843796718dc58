"""
A web server with one route that must not be carried out twice: `python -m chaos.programs.idempotent_app`.

`POST /orders` stands behind the middleware, `POST /control` is the same without it. Each execution takes a moment, so
that repeats find it in flight, and then adds a line to a file that every process of the scenario appends to.
"""

import argparse
import asyncio
import json
import logging
import os
import secrets
import signal
import socket
from typing import Any

import uvicorn

from tenure import open_idempotency_store
from tenure.ext.asgi import CONTEXT_KEY, UNSCOPED, IdempotencyMiddleware
from tenure.idempotency import Idempotency
from tenure.testing.history import HistoryRecorder

KEY = b"idempotency-key"
_PLANTED = os.environ.get("CHAOS_PLANTED", "")
"""A mistake to make on purpose, which the scenario has to see: "no layer"."""


def shop(options: argparse.Namespace, recorder: HistoryRecorder) -> Any:
    """Make the application."""
    effects = os.open(options.effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    async def application(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        context = scope.get("state", {}).get(CONTEXT_KEY)
        order = dict(scope["headers"])[KEY].decode()
        await asyncio.sleep(options.takes)
        receipt = {"order": order, "receipt": secrets.token_hex(8), "process": options.process}
        os.write(effects, f"{scope['path']}\n".encode())
        if context is not None:
            recorder.note("effect", record=order, attempt=context.attempt, committed=True)
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 201, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(receipt).encode()})

    return application


async def main(options: argparse.Namespace) -> None:
    """Serve until SIGTERM."""
    recorder = HistoryRecorder(options.history, process=options.process)
    plain = shop(options, recorder)
    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    async with (
        open_idempotency_store(options.url) as store,
        Idempotency(store, lock_ttl=30, instance=options.process, hooks=[], startup_check=False) as idempotency,
    ):
        guarded = IdempotencyMiddleware(plain, idempotency=idempotency, principal=UNSCOPED)

        async def application(scope: Any, receive: Any, send: Any) -> None:
            unguarded = scope["path"] == "/control" or _PLANTED == "no layer"
            await (plain if unguarded else guarded)(scope, receive, send)

        config = uvicorn.Config(application, lifespan="off", log_level="critical", access_log=False)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        print(json.dumps({"what": "ready", "port": listening.getsockname()[1]}), flush=True)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, setattr, server, "should_exit", True)
        await serving


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="chaos.programs.idempotent_app")
    parser.add_argument("--process", required=True)
    parser.add_argument("--history", required=True)
    parser.add_argument("--url", required=True, help="of the idempotency store")
    parser.add_argument("--effects", required=True, help="file that each execution adds a line to")
    parser.add_argument("--takes", type=float, default=0.2, help="seconds that an execution takes")
    return parser.parse_args()


if __name__ == "__main__":
    logging.getLogger("tenure").setLevel(logging.CRITICAL)
    asyncio.run(main(parse()))
