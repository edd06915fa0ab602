"""One request of a kind to a peer at a time; failures wait longer each time."""

from millstream.node.consensus.raft.messages import Fetch, FetchSnapshot, LogPosition, Peer
from millstream.node.consensus.raft.outbox import MAX_RETRY_BACKOFF_MS, Outbox
from millstream.node.consensus.raft.settings import QuorumSettings
from tests.unit.node.consensus.raft.cluster import key_of

SETTINGS = QuorumSettings()
PEER = Peer(2, ())
REQUEST = FetchSnapshot(
    cluster_id=None,
    replica=key_of(1),
    current_leader_epoch=1,
    snapshot=LogPosition(1, 1),
    position=0,
    max_bytes=1,
)


def test_one_at_a_time_until_it_counts_as_lost() -> None:
    outbox = Outbox(SETTINGS)
    outbox.send(PEER, REQUEST, 0, wait_ms=500)
    (send,) = outbox.drain()
    assert outbox.drain() == []
    assert outbox.is_current(send)
    assert not outbox.ready(2, FetchSnapshot, SETTINGS.request_timeout_ms + 499)
    assert outbox.ready(2, FetchSnapshot, SETTINGS.request_timeout_ms + 500)
    assert outbox.ready(2, Fetch, 0) and outbox.ready(3, FetchSnapshot, 0)
    outbox.send(PEER, REQUEST, 5000)
    assert not outbox.is_current(send), "its response is too late now"


def test_failures_wait_longer_each_time_until_one_succeeds() -> None:
    outbox = Outbox(SETTINGS)
    waits = []
    for _ in range(8):
        outbox.send(PEER, REQUEST, 0)
        (send,) = outbox.drain()
        outbox.failed(send, 0)
        waits.append(outbox.ready_ms(2, FetchSnapshot))
    assert waits[:3] == [20, 40, 80]
    assert waits[-1] == MAX_RETRY_BACKOFF_MS
    outbox.send(PEER, REQUEST, 0)
    (send,) = outbox.drain()
    outbox.succeeded(send)
    assert outbox.ready(2, FetchSnapshot, 0)


def test_a_change_of_roles_forgets_what_is_under_way_and_keeps_pauses() -> None:
    outbox = Outbox(SETTINGS)
    outbox.send(PEER, REQUEST, 0)
    (send,) = outbox.drain()
    outbox.forget_in_flight()
    assert not outbox.is_current(send)
    assert outbox.ready(2, FetchSnapshot, 0)
    outbox.pause(2, FetchSnapshot, 100)
    outbox.forget_in_flight()
    assert not outbox.ready(2, FetchSnapshot, 99)
