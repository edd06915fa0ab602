from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.formats.model.identifiers import TopicName, TopicPartition
from millstream.node.storage.file_formats import (
    DamagedFileError,
    decode_epochs,
    decode_offsets,
    decode_topic_id,
    encode_epochs,
    encode_offsets,
    encode_topic_id,
)


def test_offsets_as_kafka_writes_them() -> None:
    offsets = {TopicPartition(TopicName("a.b-c"), 3): 17, TopicPartition(TopicName("z"), 0): 0}
    assert encode_offsets(offsets) == b"0\n2\na.b-c 3 17\nz 0 0\n"
    assert decode_offsets(encode_offsets(offsets)) == offsets


def test_epochs_as_kafka_writes_them() -> None:
    assert encode_epochs([(0, 0), (4, 1000)]) == b"0\n2\n0 0\n4 1000\n"
    assert decode_epochs(b"0\n2\n0 0\n4 1000\n") == [(0, 0), (4, 1000)]
    with pytest.raises(DamagedFileError):
        decode_epochs(b"0\n2\n4 0\n3 1000\n")


def test_topic_id_as_kafka_writes_it() -> None:
    topic_id = UUID("d7b8a5c0-1234-4abc-9def-001122334455")
    assert encode_topic_id(topic_id) == b"version: 0\ntopic_id: 17ilwBI0Sryd7wARIjNEVQ\n"
    assert decode_topic_id(encode_topic_id(topic_id)) == topic_id


@given(st.binary(max_size=60))
def test_junk_is_told_from_a_checkpoint(data: bytes) -> None:
    for decode in (decode_offsets, decode_epochs, decode_topic_id):
        try:
            decode(data)
        except DamagedFileError:
            pass


@given(st.binary(max_size=40), st.integers(0, 40))
def test_cut_checkpoints_are_told(noise: bytes, at: int) -> None:
    data = encode_offsets({TopicPartition(TopicName("topic"), 3): 1234567, TopicPartition(TopicName("topic"), 4): 1})
    cut = data[: min(at, len(data) - 3)] + noise
    try:
        found = decode_offsets(cut)
    except DamagedFileError:
        return
    assert isinstance(found, dict)
