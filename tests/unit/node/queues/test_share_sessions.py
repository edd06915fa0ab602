"""The table of share sessions by itself, and what is read off records for key order and delays."""

from uuid import UUID

import pytest

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.records.compression import Codec
from millstream.formats.records.opening import OpeningLimits
from millstream.formats.records.record import Record, build_batch
from millstream.node.queues import fetch as share_sessions
from millstream.node.queues.fetch import ShareSession, ShareSessions
from millstream.node.queues.leader import due_ms, inspect
from millstream.node.server.service import Peer


def peer() -> Peer:
    return Peer("127.0.0.1", 1, "PLAINTEXT")


def test_a_session_ends_with_its_latest_connection() -> None:
    lost: list[ShareSession] = []
    sessions = ShareSessions(2, lost.append)
    first, second = peer(), peer()
    session = sessions.open("g", "m", first)
    assert sessions.resume("g", "m", 1, second) is session
    first.close()
    assert lost == [] and len(sessions) == 1
    second.close()
    assert lost == [session] and session.closed and len(sessions) == 0


def test_a_new_session_takes_over_what_the_old_one_may_hold() -> None:
    lost: list[ShareSession] = []
    sessions = ShareSessions(1, lost.append)
    connection = peer()
    old = sessions.open("g", "m", connection)
    old.touched.add(("t", 0))  # type: ignore[arg-type]
    new = sessions.open("g", "m", connection)
    assert old.closed and new.touched == old.touched
    with pytest.raises(KafkaError) as refused:
        sessions.open("g", "other", connection)
    assert refused.value.code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
    connection.close()
    assert lost == [new]


def test_partitions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_sessions, "_PARTITIONS_PER_SESSION", 3)
    monkeypatch.setattr(share_sessions, "_PARTITIONS_IN_ALL", 4)
    sessions = ShareSessions(9, lambda session: None)
    connection = peer()
    many = [(UUID(int=1), index) for index in range(5)]
    first, second = sessions.open("g", "a", connection), sessions.open("g", "b", connection)
    sessions.follow(first, many[:3], [])
    with pytest.raises(KafkaError) as refused:
        sessions.follow(first, many[3:4], [])
    assert refused.value.code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
    sessions.follow(first, many[:3], [])
    with pytest.raises(KafkaError):
        sessions.follow(second, many[:2], [])
    sessions.follow(second, many[:1], [])
    sessions.close("g", "a")
    sessions.follow(second, many[:3], [])
    sessions.follow(second, [], many)
    assert not second.partitions


def test_epochs_wrap_to_one() -> None:
    sessions = ShareSessions(1, lambda session: None)
    connection = peer()
    session = sessions.open("g", "m", connection)
    session.epoch = (1 << 31) - 1
    sessions.resume("g", "m", (1 << 31) - 1, connection)
    assert session.epoch == 1


@pytest.mark.parametrize(
    ("header", "delay_ms", "due"),
    [
        (b"5000", 0, 5000),
        (b" 5000 ", 0, 5000),
        (b"5000", 100, 5000),
        (b"5000", -1, 0),  # the topic does not ask for it
        (None, 100, 1100),
        (b"soon", 100, 1100),
        (b"-5", 0, 0),
        (b"9" * 40, 0, 0),
        (b"", 100, 1100),
    ],
)
def test_when_a_record_is_due(header: bytes | None, delay_ms: int, due: int) -> None:
    headers = () if header is None else (("other", b"1"), ("millstream-deliver-at", header))
    assert due_ms(Record(None, b"v", headers, 1000), delay_ms) == due


def test_batches_are_opened_whatever_their_codec_and_damage_holds_no_one_up() -> None:
    records = [Record(b"k", b"v", (), 1000), Record(None, b"w", (), 1000)]
    whole = build_batch(records, codec=Codec.ZSTD)
    damaged = build_batch(records, base_offset=2, codec=Codec.GZIP)
    damaged[70:] = b"\0" * (len(damaged) - 70)
    found = list(inspect(bytes(whole + damaged), -1, 0, 9, OpeningLimits()))
    assert found == [(0, b"k", 0), (1, None, 0), (2, None, 0), (3, None, 0)]
    assert list(inspect(bytes(whole + damaged), -1, 1, 2, OpeningLimits())) == found[1:3]
