"""Requests made up from the API's own description: whatever comes, the shop makes no mistake."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from cat_store.demo.partners import PartnersProcess
from cat_store.demo.shop import Shop

Launch = Callable[..., Awaitable[list[Any]]]

SEED = 20
EXAMPLES = 25
# Half a minute on an idle machine.
PATIENCE_S = 240
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
)


@pytest.mark.matrix
async def test_no_request_that_the_api_describes_or_forbids_ends_in_a_mistake(
    launch: Launch, shop: Shop, tmp_path: Path
) -> None:
    await shop.place_orders(3)
    async with PartnersProcess() as partners:
        (replica,) = await launch(
            1,
            ACCOUNTING_URL=partners.accounting_url,
            WAREHOUSE_URL=partners.warehouse_url,
            ADMIN_TOKEN="s3cret-administrator",
        )
        made_up = await asyncio.to_thread(make_up_requests, replica.url, tmp_path)
    assert made_up.returncode == 0, made_up.stdout
    assert "Traceback" not in "\n".join(line.text for line in replica.lines)


def make_up_requests(url: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [
            str(Path(sys.executable).with_name("schemathesis")),
            "run",
            f"{url}/schema/openapi.json",
            f"--checks={','.join(CHECKS)}",
            f"--seed={SEED}",
            f"--max-examples={EXAMPLES}",
            "--phases=examples,coverage,fuzzing",
            "--header=X-Admin-Token:s3cret-administrator",
            "--suppress-health-check=all",
            "--request-timeout=30",
            "--continue-on-failure",
            "--no-shrink",
        ],
        cwd=folder,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
    )
