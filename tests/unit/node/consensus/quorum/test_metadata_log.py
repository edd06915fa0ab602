from uuid import UUID

import pytest

from millstream.config.setting import ConfigError
from millstream.node.consensus.quorum.metadata_log import MetadataLog, new_batch
from millstream.node.consensus.quorum.snapshots import SnapshotContent
from millstream.node.consensus.raft.log import (
    CorruptFetchError,
    KRaftVersionRecord,
    LeaderChangeRecord,
    PlacedControlRecord,
    VotersRecord,
)
from millstream.node.consensus.raft.messages import LogPosition
from millstream.node.consensus.raft.voter_set import Endpoint, ReplicaKey, Voter, VoterSet
from millstream.node.metadata.records import CorruptMetadataError
from tests.unit.node.consensus.quorum.conftest import NOW, DiskOfNode, MakeNode, append, flush, names, topic

VOTERS = VoterSet(
    tuple(Voter(ReplicaKey(id, UUID(int=id)), (Endpoint("CONTROLLER", f"host-{id}", 9093),)) for id in (1, 2, 3))
)


def test_an_empty_log_begins_and_ends_at_zero(node: DiskOfNode) -> None:
    log = node.open()
    assert log.start == log.end == LogPosition(0, 0)
    assert log.flushed_offset == 0
    assert log.end_of_epoch(5) == LogPosition(0, 0)
    assert list(log.control_records()) == []
    assert log.latest_snapshot is None
    assert log.read(0, 100, below=0) == b""


def test_append_flush_and_read_back(node: DiskOfNode) -> None:
    log = node.open()
    assert log.append_control(1, [LeaderChangeRecord(1, (1, 2, 3), (1, 2))], NOW) == 0
    assert append(log, topic(1), topic(2)) == 2
    assert log.end == LogPosition(3, 1)
    assert log.flushed_offset == 0
    flush(log)
    assert log.flushed_offset == 3
    assert names(log) == ["topic-1", "topic-2"]
    batches = list(log.batches(0, 3))
    assert [(batch.last_offset, batch.epoch, len(batch.records)) for batch in batches] == [(0, 1, 0), (2, 1, 2)]
    assert list(log.batches(1, 1)) == []
    assert [batch.last_offset for batch in log.batches(0, 1)] == [0]


def test_reads_end_with_whole_batches_below_the_bound(node: DiskOfNode) -> None:
    log = node.open()
    for number in range(50):
        append(log, topic(number), topic(number + 100))
    one = len(new_batch([topic(10), topic(110)], 5))
    assert len(log.read(20, 1, below=100)) == one
    assert len(log.read(20, 2 * one + 5, below=24)) == 2 * one
    assert len(log.read(20, 1 << 20, below=23)) == one, "half a batch is none"
    assert names(log) == [f"topic-{each}" for number in range(50) for each in (number, number + 100)]
    assert len(log.partition.segments) > 1, "this was to be read across segments"


def test_each_epoch_has_its_end(node: DiskOfNode) -> None:
    log = node.open()
    append(log, topic(1), epoch=2)
    append(log, topic(2), epoch=2)
    append(log, topic(3), epoch=5)
    assert log.end == LogPosition(3, 5)
    assert log.end_of_epoch(1) == LogPosition(0, 0)
    assert log.end_of_epoch(2) == LogPosition(2, 2)
    assert log.end_of_epoch(4) == LogPosition(2, 2)
    assert log.end_of_epoch(5) == log.end_of_epoch(9) == LogPosition(3, 5)


def test_a_follower_has_the_same_bytes(node: DiskOfNode, make_node: MakeNode) -> None:
    leader, follower = node.open(), make_node("other").open()
    leader.append_control(3, [LeaderChangeRecord(1, (1,), (1,)), KRaftVersionRecord(1), VotersRecord(VOTERS)], NOW)
    append(leader, topic(1), epoch=3)
    sent = leader.read(0, 1 << 20, below=4)
    placed = follower.append_fetched(sent + sent[:100])  # a batch that is cut off is left out
    assert placed[0] == PlacedControlRecord(0, LeaderChangeRecord(1, (1,), (1,)))
    assert placed[1:] == [PlacedControlRecord(1, KRaftVersionRecord(1)), PlacedControlRecord(2, VotersRecord(VOTERS))]
    assert list(follower.control_records()) == placed
    assert follower.read(0, 1 << 20, below=4) == sent
    assert follower.end == leader.end


def test_what_does_not_fit_is_not_appended(node: DiskOfNode, make_node: MakeNode) -> None:
    leader, follower = node.open(), make_node("other").open()
    append(leader, topic(1), epoch=3)
    append(leader, topic(2), epoch=3)
    sent = leader.read(0, 1 << 20, below=2)
    first = sent[: len(sent) // 2]
    follower.append_fetched(first)
    damaged = bytearray(sent[len(first) :])
    damaged[-1] ^= 1
    old = make_node("old").open()
    append(old, topic(0), epoch=1)
    append(old, topic(0), epoch=1)
    older = old.read(1, 1 << 20, below=2)
    for wrong in (b"", b"x" * 200, first, sent, bytes(damaged), older):
        with pytest.raises(CorruptFetchError):
            follower.append_fetched(wrong)
        assert follower.end == LogPosition(1, 3)


def test_truncation_takes_back_what_was_flushed(node: DiskOfNode) -> None:
    log = node.open()
    for number in range(4):
        append(log, topic(number), epoch=number)
    job = log.flush_job()
    assert job is not None
    log.truncate_to(2)
    append(log, topic(9), epoch=7)
    job.done(job.run())
    assert log.flushed_offset <= 2, "a flush that began before must not count for what came after"
    flush(log)
    assert (log.flushed_offset, log.end) == (3, LogPosition(3, 7))
    assert names(log) == ["topic-0", "topic-1", "topic-9"]


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_finds_everything_and_has_it_on_disk(node: DiskOfNode, clean: bool) -> None:
    log = node.open()
    log.append_control(1, [KRaftVersionRecord(1), VotersRecord(VOTERS)], NOW)
    for number in range(30):
        append(log, topic(number))
    node.stop() if clean else node.kill()
    log = node.open()
    assert log.end == LogPosition(32, 1)
    assert log.flushed_offset == 32
    assert [placed.offset for placed in log.control_records()] == [0, 1]
    assert names(log) == [f"topic-{number}" for number in range(30)]


def write_snapshot(log: MetadataLog, *, count: int) -> LogPosition:
    snapshot = log.end
    content = SnapshotContent(5, 1, VOTERS, tuple(topic(number) for number in range(count)))
    log.snapshots.write(snapshot, content, 6)
    log.snapshots.add(snapshot)
    return snapshot


def test_a_snapshot_lets_the_log_begin_later(node: DiskOfNode) -> None:
    log = node.open()
    for number in range(60):
        append(log, topic(number))
        if number == 10:
            first = write_snapshot(log, count=11)
    flush(log)
    log.partition.high_watermark = 60
    second = write_snapshot(log, count=60)
    append(log, topic(60), epoch=4)
    log.partition.high_watermark = 61
    assert log.start == LogPosition(0, 0)
    assert log.latest_snapshot == second
    segments = len(log.partition.segments)
    log.begin_at(first)
    assert log.start == first == LogPosition(11, 1)
    log.begin_at(second)
    assert log.start == second == LogPosition(60, 1)
    assert log.snapshots.ids == (second,)
    assert len(log.partition.segments) < segments
    assert names(log, 60) == ["topic-60"]
    assert log.end_of_epoch(1) == LogPosition(60, 1)
    assert log.end_of_epoch(0) == second
    assert [placed.offset for placed in log.control_records()] == [59, 59]


@pytest.mark.parametrize("checkpointed", [True, False])
def test_a_crash_after_the_log_was_shortened(node: DiskOfNode, checkpointed: bool) -> None:
    log = node.open()
    for number in range(60):
        append(log, topic(number))
    flush(log)
    log.partition.high_watermark = 60
    snapshot = write_snapshot(log, count=60)
    append(log, topic(60))
    log.begin_at(snapshot)
    node.kill(checkpointed=checkpointed)
    log = node.open()
    assert log.start == snapshot
    assert names(log, log.start.offset) == ["topic-60"]
    assert log.snapshots.ids == (snapshot,)


def test_a_snapshot_is_fetched_in_pieces_and_replaces_the_log(node: DiskOfNode, make_node: MakeNode) -> None:
    leader, other = node.open(), make_node("other")
    follower = other.open()
    append(follower, topic(77), epoch=1)
    for number in range(60):
        append(leader, topic(number), epoch=2)
    flush(leader)
    snapshot = write_snapshot(leader, count=60)
    assert leader.read_snapshot(LogPosition(7, 7), 0, 100) is None
    position = follower.begin_snapshot(snapshot)
    while True:
        piece = leader.read_snapshot(snapshot, position, 700)
        assert piece is not None
        follower.write_snapshot(position, piece[1])
        position += len(piece[1])
        if position == piece[0]:
            break
    assert follower.install_snapshot() == [
        PlacedControlRecord(59, KRaftVersionRecord(1)),
        PlacedControlRecord(59, VotersRecord(VOTERS)),
    ]
    assert follower.start == follower.end == snapshot == LogPosition(60, 2)
    assert follower.flushed_offset == 60
    assert follower.end_of_epoch(2) == snapshot
    assert follower.installed is not None and follower.installed.records == tuple(map(topic, range(60)))
    append(leader, topic(60), epoch=2)
    follower.append_fetched(leader.read(60, 1000, below=61))
    other.kill()
    follower = other.open()
    assert follower.start == snapshot
    assert follower.end == LogPosition(61, 2)


def test_a_snapshot_that_is_not_whole_is_not_installed(node: DiskOfNode, make_node: MakeNode) -> None:
    leader, follower = node.open(), make_node("other").open()
    append(leader, topic(1))
    snapshot = write_snapshot(leader, count=1)
    piece = leader.read_snapshot(snapshot, 0, 1 << 20)
    assert piece is not None
    damaged = bytearray(piece[1])
    damaged[150] ^= 1
    for wrong in (piece[1][:-10], bytes(damaged), b"", piece[1] + piece[1]):
        follower.begin_snapshot(snapshot)
        follower.write_snapshot(0, wrong)
        with pytest.raises(CorruptFetchError):
            follower.install_snapshot()
        assert follower.end == LogPosition(0, 0)
        assert follower.latest_snapshot is None


def test_a_crash_between_snapshot_and_log(node: DiskOfNode) -> None:
    """The snapshot is in place, and what it replaces is still there."""
    log = node.open()
    append(log, topic(1))
    content = SnapshotContent(5, 0, None, tuple(map(topic, range(9))))
    log.snapshots.write(LogPosition(50, 3), content, 6)
    (node.path / "00000000000000000060-0000000003.checkpoint.part").write_bytes(b"half")
    node.kill()
    log = node.open()
    assert log.start == log.end == LogPosition(50, 3)
    assert log.snapshots.read(LogPosition(50, 3)).records == content.records
    assert not list(node.path.glob("*.part"))


def test_damage_in_the_middle_is_noticed_at_the_start(node: DiskOfNode) -> None:
    log = node.open()
    for number in range(60):
        append(log, topic(number))
    flush(log)
    node.stop()
    segment = min(node.path.glob("*.log"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)
    log = node.open()
    with pytest.raises(CorruptMetadataError):
        list(log.control_records())


def test_committed_records_that_are_gone_are_refused(node: DiskOfNode) -> None:
    log = node.open()
    for number in range(10):
        append(log, topic(number))
    flush(log)
    log.partition.high_watermark = 10
    node.kill(checkpointed=True)
    segment = min(node.path.glob("*.log"))
    segment.write_bytes(segment.read_bytes()[:-200])
    with pytest.raises(ConfigError) as refusal:
        node.open()
    assert "records up to 10 were committed" in refusal.value.message
    assert "restore it from a copy" in refusal.value.message


def test_a_log_without_its_snapshot_is_refused(node: DiskOfNode) -> None:
    log = node.open()
    for number in range(60):
        append(log, topic(number))
    flush(log)
    log.partition.high_watermark = 60
    log.begin_at(write_snapshot(log, count=60))
    node.stop()
    for snapshot in node.path.glob("*.checkpoint"):
        snapshot.unlink()
    with pytest.raises(ConfigError, match="no snapshot has the records before"):
        node.open()
