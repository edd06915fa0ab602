"""Replicas under a throttle: which they are, and when they are held up."""

import pytest

from millstream.node.replicas.throttle import ReplicaThrottle, parse_throttled


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("*", None),
        ("", frozenset()),
        ("0:1", {(0, 1)}),
        (" 0:1 , 3:2,", {(0, 1), (3, 2)}),
        ("0:1,*", None),
        ("nonsense,1:x,2:3", {(2, 3)}),
    ],
)
def test_the_setting_names_throttled_replicas(text: str, named: set[tuple[int, int]] | None) -> None:
    assert parse_throttled(text) == named


def test_a_throttle_holds_up_above_its_rate_only() -> None:
    now = [100.0]
    rate = [1000]
    configs = {"t": {"leader.replication.throttled.replicas": "0:7"}}
    throttle = ReplicaThrottle(
        "leader.replication.throttled.replicas",
        7,
        lambda topic: configs.get(topic, {}),
        lambda: rate[0],
        lambda: now[0],
    )
    assert throttle.is_throttled("t", 0)
    assert not throttle.is_throttled("t", 1) and not throttle.is_throttled("other", 0)
    assert not throttle.is_exceeded()
    throttle.record(9_000)
    assert not throttle.is_exceeded(), "a burst is not an average"
    throttle.record(2_000)
    assert throttle.is_exceeded()
    rate[0] = 10_000
    assert not throttle.is_exceeded(), "an operator may raise it at any time"
    rate[0] = 1000
    now[0] += 20
    assert not throttle.is_exceeded(), "what was long ago is forgotten"
    configs["t"] = {"leader.replication.throttled.replicas": "*"}
    assert throttle.is_throttled("t", 1)
