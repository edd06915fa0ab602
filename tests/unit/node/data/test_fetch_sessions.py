"""The table of fetch sessions by itself, where time can be told: eviction and epochs that wrap."""

import random

import pytest

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.fetch import FetchPartition, FetchRequest
from millstream.node.data.fetch_sessions import FetchSession, FetchSessions

PARTITION = FetchPartition(0, -1, 0, -1, -1, 1 << 20)


def request(
    session_id: int = 0, epoch: int = 0, topics: tuple[bytes, ...] = (b"t",), *, replica_id: int = -1
) -> FetchRequest:
    wanted = [(topic, [PARTITION]) for topic in topics]
    return FetchRequest(replica_id, 0, 1, 1 << 20, 0, session_id, epoch, wanted, [], b"")


def begin(sessions: FetchSessions, now: float) -> FetchSession | None:
    return sessions.resolve(request(), 12, now)


def test_the_least_recently_used_session_makes_room_when_it_is_old_enough() -> None:
    sessions = FetchSessions(2, random.Random(1))
    first, second = begin(sessions, 0.0), begin(sessions, 1.0)
    assert first is not None and second is not None
    assert begin(sessions, 60.0) is None  # both were used a moment ago
    assert sessions.resolve(request(first.id, 1, ()), 12, 100.0) is first
    third = begin(sessions, 150.0)
    assert third is not None and len(sessions) == 2
    with pytest.raises(KafkaError) as error:
        sessions.resolve(request(second.id, 1, ()), 12, 151.0)
    assert error.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert sessions.resolve(request(first.id, 2, ()), 12, 152.0) is first


def test_no_slots_mean_no_sessions() -> None:
    assert begin(FetchSessions(0, random.Random(1)), 0.0) is None


def test_epochs_wrap_to_one() -> None:
    sessions = FetchSessions(2, random.Random(1))
    session = begin(sessions, 0.0)
    assert session is not None
    session.epoch = 2**31 - 1
    assert sessions.resolve(request(session.id, 2**31 - 1, ()), 12, 1.0) is session
    assert session.epoch == 1


def test_a_new_full_fetch_replaces_the_session_it_names() -> None:
    sessions = FetchSessions(2, random.Random(1))
    session = begin(sessions, 0.0)
    assert session is not None
    again = sessions.resolve(request(session.id, 0), 12, 1.0)
    assert again is not None and again is not session and len(sessions) == 1


def test_a_follower_always_finds_room() -> None:
    sessions = FetchSessions(2, random.Random(1))
    consumer = begin(sessions, 0.0)
    follower = sessions.resolve(request(replica_id=2), 12, 1.0)
    another = sessions.resolve(request(replica_id=3), 12, 2.0)
    assert consumer is not None and follower is not None and another is not None
    assert len(sessions) == 2
    with pytest.raises(KafkaError):
        sessions.resolve(request(consumer.id, 1, ()), 12, 3.0)
    assert sessions.resolve(request(follower.id, 1, ()), 12, 4.0) is follower
    assert begin(sessions, 5.0) is None, "a consumer does not take a follower's place"
    assert sessions.resolve(request(replica_id=4), 12, 6.0) is None, "nor does another follower"
    assert begin(sessions, 200.0) is not None, "unless it was not used for long"
