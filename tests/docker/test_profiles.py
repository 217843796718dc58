"""The two profiles: the same shop with its locks and its idempotency records in a Valkey, and in a cluster."""

import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest

from cat_store.inventory.catalogue import SALMON_KIBBLE

pytestmark = pytest.mark.docker

logger = logging.getLogger(__name__)


@pytest.fixture(scope="module", params=["valkey", "cluster"])
def shop(request: pytest.FixtureRequest, image: str, containers: Any) -> Iterator[Any]:
    del image
    with containers(f"{request.param}.env") as opened:
        opened.profile = request.param
        yield opened


def keys(shop: Any) -> set[str]:
    """The keys in the profile's own servers, of every node."""
    nodes = ["locks"] if shop.profile == "valkey" else [f"node-{number}" for number in range(1, 7)]
    return {
        line
        for node in nodes
        for line in shop.compose("exec", "-T", node, "valkey-cli", "--scan").splitlines()
        if line.strip()
    }


def test_the_profile_keeps_locks_and_records_and_takes_over_after_docker_kill(shop: Any) -> None:
    headers = {"Idempotency-Key": "order-of-the-profile"}
    order = {"customer": "alice", "lines": [{"product_id": SALMON_KIBBLE, "quantity": 1}]}
    answers = [shop.web[name].post("/orders", json=order, headers=headers).raise_for_status() for name in shop.replicas]
    assert len({answer.json()["id"] for answer in answers}) == 1, "three requests under one key place one order"
    shop.placed.append(answers[0].json()["id"])
    owner = shop.until(lambda: shop.partner("warehouse")["senders"], "a full count")[-1]
    found = keys(shop)
    assert any("inventory:stock-reconciliation:owner" in key for key in found), found
    assert any(key.startswith("idem:") for key in found), found
    survivor = next(name for name in shop.replicas if name != owner)
    killed_at = time.monotonic()
    shop.do("kill", owner)
    counts = len(shop.partner("warehouse")["senders"])
    shop.until(lambda: set(shop.partner("warehouse")["senders"][counts:]) - {owner}, "a full count of another replica")
    takeover_s = time.monotonic() - killed_at
    logger.info("%s: docker kill %s: taken over after %.2f s", shop.profile, owner, takeover_s)
    assert takeover_s <= shop.ttl_s + 2 * shop.tick_s
    shop.order(survivor)
    shop.see_every_order_booked_once()
