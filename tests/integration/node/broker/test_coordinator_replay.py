"""A coordinator's log that has records which cannot be read: they are reported and passed over, the others count."""

import logging
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.config.loading import load_broker_config
from millstream.formats.model.identifiers import TopicName, TopicPartition
from millstream.formats.records.compression import Codec
from millstream.formats.records.opening import OpeningLimits
from millstream.formats.records.record import Record, build_batch
from millstream.node.coordination.core.state_machine import CoordinatorRecord, FixedTopics, Timers
from millstream.node.coordination.replay import SLICE_RECORDS, replay_batches
from millstream.node.groups.core.records import CommittedOffset, RecordType, group_record, offset_record
from millstream.node.groups.core.shard import GroupShard
from millstream.node.queues.core.state import SHARE_RECORDS, SNAPSHOT, ShareKey, ShareStateShard
from millstream.node.transactions.core.shard import TransactionSettings, TransactionShard, encode
from millstream.node.transactions.core.transaction import Transaction, TransactionState
from tests.unit.node.coordination.replaying import finished

CONFIG = load_broker_config()
TOPIC_ID = UUID(int=77)
NOW_MS = 1_000_000


@dataclass(frozen=True)
class Kind:
    """One kind of state machine, records of it, and how to see that the first and the last were applied."""

    make: Callable[[], Any]
    good: Callable[[str], CoordinatorRecord]
    others: Sequence[CoordinatorRecord]
    has: Callable[[Any, str], bool]


def _transaction(name: str, state: TransactionState = TransactionState.ONGOING) -> CoordinatorRecord:
    return encode(
        Transaction(
            transactional_id=name,
            producer_id=5,
            producer_epoch=1,
            timeout_ms=60_000,
            state=state,
            partitions=frozenset({TopicPartition(TopicName("topic"), 0)}),
            start_ms=NOW_MS,
            updated_ms=NOW_MS,
        ),
        2,
    )


def _share(name: str) -> CoordinatorRecord:
    batch = {"first_offset": 3, "last_offset": 9, "delivery_state": 2, "delivery_count": 1}
    value = {"state_epoch": 1, "leader_epoch": 1, "start_offset": 3, "state_batches": [batch]}
    return SHARE_RECORDS.encode(SNAPSHOT, {"group_id": name, "topic_id": TOPIC_ID, "partition": 0}, value)


def _offset(name: str) -> CoordinatorRecord:
    return offset_record(name, "topic", 0, CommittedOffset(5, 1, "note", NOW_MS))


def _classic(name: str) -> CoordinatorRecord:
    member = {"member_id": "m", "client_id": "c", "client_host": "h", "session_timeout": 9, "rebalance_timeout": 9}
    member |= {"subscription": b"\0\1", "assignment": b""}
    value = {"protocol_type": "consumer", "generation": 3, "protocol": "range", "leader": "m", "members": [member]}
    return group_record(RecordType.GROUP_METADATA, {"group": name}, value)


def _consumer_records() -> list[CoordinatorRecord]:
    group, member = {"group_id": "victim"}, {"group_id": "victim", "member_id": "m"}
    topics = [{"topic_id": TOPIC_ID, "partitions": [0, 1]}]
    subscription = {"client_id": "c", "client_host": "h", "subscribed_topic_names": ["topic"], "server_assignor": None}
    return [
        group_record(RecordType.CONSUMER_GROUP_METADATA, group, {"epoch": 3}),
        group_record(
            RecordType.CONSUMER_GROUP_MEMBER_METADATA,
            member,
            subscription | {"subscribed_topic_regex": "a.*", "rebalance_timeout_ms": 9, "instance_id": None},
        ),
        group_record(RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_METADATA, group, {"assignment_epoch": 3}),
        group_record(RecordType.CONSUMER_GROUP_TARGET_ASSIGNMENT_MEMBER, member, {"topic_partitions": topics}),
        group_record(
            RecordType.CONSUMER_GROUP_CURRENT_MEMBER_ASSIGNMENT,
            member,
            {"member_epoch": 3, "previous_member_epoch": 2, "state": 1, "assigned_partitions": topics},
        ),
        group_record(RecordType.SHARE_GROUP_METADATA, group, {"epoch": 3}),
        group_record(
            RecordType.SHARE_GROUP_MEMBER_METADATA,
            member,
            {"rack_id": None, "client_id": "c", "client_host": "h", "subscribed_topic_names": ["topic"]},
        ),
    ]


def _settings() -> TransactionSettings:
    return TransactionSettings(
        transaction_version=2, expiration_ms=1000, abort_interval_ms=1000, expiry_interval_ms=1000
    )


KINDS = {
    "transactions": Kind(
        lambda: TransactionShard(_settings),
        _transaction,
        [_transaction("victim", state) for state in TransactionState],
        lambda state, name: name in state.transactions,
    ),
    "share state": Kind(
        ShareStateShard,
        _share,
        [_share("victim")],
        lambda state, name: ShareKey(name, TOPIC_ID, 0) in state.states,
    ),
    "groups": Kind(
        lambda: GroupShard(lambda: CONFIG, FixedTopics(), Random(1)),
        _offset,
        [_offset("victim"), _classic("victim"), *_consumer_records()],
        lambda state, name: name in state.offsets.by_group,
    ),
}


def log_of(records: Sequence[tuple[bytes | None, bytes | None]]) -> bytes:
    batches = [
        bytes(build_batch([Record(key, value, timestamp=NOW_MS)], base_offset=offset))
        for offset, (key, value) in enumerate(records)
    ]
    return b"".join(batches)


def loaded(kind: Kind, data: bytes, count: int) -> Any:
    state = kind.make()
    participant = state if isinstance(state, GroupShard) else None
    assert finished(replay_batches(data, 0, state, participant)) == count
    state.loaded(NOW_MS)
    return state


def damaged(record: CoordinatorRecord, chance: Random) -> tuple[bytes | None, bytes | None]:
    key, value = bytearray(record.key), bytearray(record.value or b"")
    part = chance.choice((key, value)) or key
    match chance.randrange(4):
        case 0:
            del part[chance.randrange(len(part)) :]
        case 1:
            part[chance.randrange(len(part))] ^= 1 << chance.randrange(8)
        case 2:
            at = chance.randrange(len(part))
            part[at : at + 4] = chance.randbytes(4)
        case _:
            part += chance.randbytes(chance.randrange(1, 20))
    return bytes(key), None if chance.random() < 0.1 else bytes(value)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("key", [b"", b"\0", b"\0\0", b"\0\1", b"\0\2", b"\0\3\xff", b"\x7f\xff\0"])
@pytest.mark.parametrize("value", [None, b"", b"\0", b"\0\0", b"\x7f\xff"])
def test_a_short_key_or_value_does_not_keep_a_log_from_loading(name: str, key: bytes, value: bytes | None) -> None:
    kind = KINDS[name]
    first, last = kind.good("11111111"), kind.good("22222222")
    state = loaded(kind, log_of([first, (key, value), last]), 3)
    assert kind.has(state, "11111111") and kind.has(state, "22222222")


@pytest.mark.parametrize("name", KINDS)
@given(seed=st.integers(0, 2**32))
def test_a_damaged_record_does_not_keep_a_log_from_loading(name: str, seed: int) -> None:
    kind, chance = KINDS[name], Random(seed)
    middle = [damaged(chance.choice(kind.others), chance) for _ in range(20)]
    first, last = kind.good("11111111"), kind.good("22222222")
    state = loaded(kind, log_of([first, *middle, last]), 22)
    assert kind.has(state, "11111111") and kind.has(state, "22222222")


def test_a_batch_whose_records_cannot_be_parsed_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    kind = KINDS["transactions"]
    bad = build_batch([Record(b"\0\0", b"")], base_offset=1)
    struct.pack_into(">i", bad, 57, 1000)  # the count of records
    good = [log_of([kind.good("11111111")]), bytes(bad), log_of([kind.good("11111111")] * 2 + [kind.good("22222222")])]
    with caplog.at_level(logging.WARNING):
        state = loaded(kind, b"".join(good), 3)
    assert kind.has(state, "22222222")
    assert "coordinator_record_passed_over offset=1-1" in caplog.text


def test_a_batch_that_is_more_than_the_limits_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    kind = KINDS["transactions"]
    key, value = kind.good("33333333")
    many = build_batch([Record(key, value)] * 1001, base_offset=1, codec=Codec.ZSTD)
    large = build_batch([Record(key, bytes(2 << 20))], base_offset=1002, codec=Codec.ZSTD)
    good = log_of([kind.good("11111111")] * 1003 + [kind.good("22222222")])
    first = len(good) // 1004
    data = good[:first] + many + large + good[1003 * first :]
    state = kind.make()
    with caplog.at_level(logging.WARNING):
        assert finished(replay_batches(data, 0, state, None, OpeningLimits(1 << 20, 1000))) == 1004
    assert kind.has(state, "11111111") and kind.has(state, "22222222") and not kind.has(state, "33333333")
    assert "offset=1-1001 error=BeyondLimitsError" in caplog.text
    assert "offset=1002-1002 error=BeyondLimitsError" in caplog.text


def test_many_records_are_replayed_in_slices_and_reported_in_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    class Refuses:
        timers = Timers()

        def replay(self, key: bytes, value: bytes | None) -> None:
            raise ValueError("no such record")

        def loaded(self, now_ms: int) -> None: ...

    data = bytes(build_batch([Record(b"key", b"")] * 1000))
    with caplog.at_level(logging.WARNING):
        slices = list(replay_batches(data, 0, Refuses(), None))
    assert len(slices) == 1000 // SLICE_RECORDS + 1
    assert len(caplog.records) == 6
    assert "coordinator_records_passed_over offset=0-999 count=1000" in caplog.text
