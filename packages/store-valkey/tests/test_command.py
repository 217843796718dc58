"""The `tenure` command on a Valkey server and on a cluster."""

import json
from typing import Any

import pytest

from tenure.sync import Locks
from tenure_testbed import ValkeyCluster, ValkeyServer

pytestmark = pytest.mark.matrix


def every_command_works(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    from tenure.cli.app import app

    def run(*words: Any) -> tuple[int, Any]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            app([*map(str, words), "--json"], prog_name="tenure")
        return int(ended.value.code or 0), json.loads(capsys.readouterr().out.splitlines()[0])

    code, checked = run("check", url)
    assert (code, checked["kind"]) == (0, "ValkeyLockStore"), checked
    with Locks(url, instance="shop-1", hooks=[]) as locks:
        lease = locks.acquire("test-command:job")
        _, listed = run("ls", url, "--prefix", "test-command:")
        assert [(lock["token"], lock["instance"]) for lock in listed["locks"]] == [(lease.token, "shop-1")]
        assert run("show", url, "test-command:job")[1]["held"]
        watched = run("watch", url, "--count", 1, "--prefix", "test-command:")[1]
        assert watched["locks"][0]["token"] == lease.token
        assert run("release", url, "test-command:job", "--token", lease.token + 1)[0] == 1
        assert run("release", url, "test-command:job", "--token", lease.token)[1]["released"]
        assert run("show", url, "test-command:job")[0] == 1


@pytest.mark.parametrize("client", ["glide", "redis"])
def test_on_a_server(client: str, valkey_server: ValkeyServer, capsys: pytest.CaptureFixture[str]) -> None:
    every_command_works(f"{valkey_server.url(scheme='valkey')}?client={client}", capsys)


@pytest.mark.parametrize("client", ["glide", "redis"])
def test_on_a_cluster(client: str, valkey_cluster: ValkeyCluster, capsys: pytest.CaptureFixture[str]) -> None:
    every_command_works(f"{valkey_cluster.url()}?client={client}", capsys)
