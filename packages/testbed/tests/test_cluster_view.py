"""What the nodes of a cluster believe, read and compared."""

import binascii

import pytest

from tenure_testbed.cluster_view import NodeView, agree, foremost, parse, slot_of

VALKEY_9 = """\
aa 127.0.0.1:30001@40001,,shard-id=5a myself,master - 0 0 2 connected 0-5460 [93->-bb] [77-<-bb]
bb 127.0.0.1:30002@40002,,shard-id=5b master,fail? - 1796 1796 7 connected 5461 10923-16383
cc 127.0.0.1:30003@40003,,shard-id=5a slave aa 0 1796 2 connected
dd :0@0,,shard-id=5c master,noaddr - 0 0 0 disconnected
"""
REDIS_7 = "aa 127.0.0.1:30001@40001, myself,master - 0 0 2 connected 0-16383\n"


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        ("{user1000}.following", "user1000"),
        ("foo{}{bar}", "foo{}{bar}"),
        ("foo{{bar}}zap", "{bar"),
        ("foo{bar}{zap}", "bar"),
        ("foo{bar", "foo{bar"),
        ("}foo{bär}", "bär"),
    ],
)
def test_the_tag_of_a_key_decides_its_slot_alone(key: str, hashed: str) -> None:
    assert slot_of(key) == slot_of(key.encode()) == binascii.crc_hqx(hashed.encode(), 0) % 16384


def test_the_slot_is_the_one_of_the_specification() -> None:
    assert slot_of("123456789") == 0x31C3


def test_the_lines_of_nodes_are_read() -> None:
    aa, bb, cc, dd = parse(VALKEY_9)
    assert (aa.id, aa.port, aa.epoch, aa.follows) == ("aa", 30001, 2, None)
    assert aa.is_primary
    assert aa.is_myself
    assert aa.slots == (range(5461),), "a slot on its way is served where it was"
    assert (aa.serves(5460), aa.serves(5461)) == (True, False)
    assert bb.slots == (range(5461, 5462), range(10923, 16384))
    assert (cc.is_primary, cc.follows, cc.slots) == (False, "aa", ())
    assert [view.is_doubted for view in (aa, bb, cc, dd)] == [False, True, False, True]
    assert parse(REDIS_7)[0].port == 30001


def views(**changes: str) -> list[NodeView]:
    """A primary of each half of the slots and a replica of the first, as one of them sees it."""
    lines = {
        "aa": "aa 127.0.0.1:1@11 master - 0 0 1 connected 0-8191",
        "bb": "bb 127.0.0.1:2@12 master - 0 0 2 connected 8192-16383",
        "cc": "cc 127.0.0.1:3@13 slave aa 0 0 1 connected",
    }
    return parse("\n".join((lines | changes).values()))


def test_nodes_that_see_the_same_agree() -> None:
    assert agree({1: views(), 2: views(), 3: views()})


@pytest.mark.parametrize(
    "seen",
    [
        views(aa="aa 127.0.0.1:1@11 master - 0 0 1 connected 0-8190"),
        views(bb="bb 127.0.0.1:2@12 master,fail? - 0 0 2 connected 8192-16383"),
        views(cc="cc 127.0.0.1:3@13 slave bb 0 0 1 connected"),
        views(cc="cc 127.0.0.1:3@13 handshake - 0 0 1 connected"),
        views()[:2],
    ],
    ids=["fewer slots", "a suspicion", "another primary", "a stranger", "a node unknown"],
)
def test_one_node_that_sees_something_else_is_no_agreement(seen: list[NodeView]) -> None:
    assert not agree({1: views(), 2: views(), 3: seen})


def test_what_is_believed_of_the_dead_does_not_matter() -> None:
    dead = "dd 127.0.0.1:4@14 master,fail - 0 0 1 disconnected"
    assert agree({1: views(dd=dead), 2: views(), 3: views(dd=dead.replace("master,fail", "slave,fail?"))})


def test_agreement_that_leaves_slots_unserved_is_none() -> None:
    hole = "bb 127.0.0.1:2@12 master - 0 0 2 connected 8193-16383"
    assert not agree({1: views(bb=hole), 2: views(bb=hole), 3: views(bb=hole)})


def test_slots_of_a_dead_primary_are_unserved() -> None:
    assert not agree({1: views(), 3: views()}), "node 2 was not asked, and nobody has noticed yet"


def test_a_replica_of_a_dead_primary_is_no_agreement() -> None:
    seen = views(
        aa="aa 127.0.0.1:1@11 master - 0 0 1 connected", bb="bb 127.0.0.1:2@12 master - 0 0 2 connected 0-16383"
    )
    assert agree({1: seen, 2: seen, 3: seen})
    assert not agree({2: seen, 3: seen})


def test_of_two_that_believe_in_themselves_the_later_one_is_the_primary() -> None:
    old, new, replica = views(bb="bb 127.0.0.1:2@12 myself,master - 0 0 7 connected 0-8191")
    assert foremost([replica, new, old]) is foremost([old, new]) is new
    assert foremost([replica]) is None


def test_nobody_asked_is_no_agreement() -> None:
    assert not agree({})
