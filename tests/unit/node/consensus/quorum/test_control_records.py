from uuid import UUID

import pytest

from millstream.formats.records.record import Record
from millstream.node.consensus.quorum.control_records import (
    ControlRecord,
    KRaftVersion,
    LeaderChange,
    SnapshotFooter,
    SnapshotHeader,
    Voters,
    decode_control,
    encode_control,
)
from millstream.node.consensus.raft.voter_set import Endpoint, ReplicaKey, Voter, VoterSet
from millstream.node.metadata.records import CorruptMetadataError

KEY = ReplicaKey(1, UUID(int=7))


@pytest.mark.parametrize(
    "record",
    [
        LeaderChange(1, (ReplicaKey(1), ReplicaKey(2)), (ReplicaKey(2),)),
        LeaderChange(1, (KEY,), (KEY,)),
        SnapshotHeader(123),
        SnapshotFooter(),
        KRaftVersion(1),
        Voters(VoterSet((Voter(KEY, (Endpoint("A", "h", 65535), Endpoint("B", "::1", 1)), 0, 1),))),
    ],
)
def test_control_records_are_encoded_and_decoded(record: ControlRecord) -> None:
    assert decode_control(encode_control(record, 5)) == record


def test_the_bytes_are_kafkas() -> None:
    written = encode_control(LeaderChange(1, (ReplicaKey(1),), (ReplicaKey(1),)), 5)
    assert written.key == b"\0\0\0\2"
    assert written.value == b"\0\0" + b"\0\0\0\1" + b"\2\0\0\0\1\0" * 2 + b"\0"
    assert encode_control(KRaftVersion(1), 5).value == b"\0\0\0\1\0"
    assert encode_control(SnapshotFooter(), 5) == Record(key=b"\0\0\0\4", value=b"\0\0\0", timestamp=5)


def test_transaction_markers_are_no_concern() -> None:
    assert decode_control(Record(key=b"\0\0\0\1", value=b"\0\0\0\0\0\0")) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"\0\0"),
        (b"\0\0\0\2", b""),
        (b"\0\0\0\2", b"\0\x09"),
        (b"\0\0\0\2", b"\0\0\0"),
        (b"\0\0\0\5", b"\0\0\0\1\0\0"),
    ],
)
def test_malformed_control_records_are_refused(key: bytes | None, value: bytes) -> None:
    with pytest.raises(CorruptMetadataError):
        decode_control(Record(key=key, value=value))
