"""The runtime and transactions: records in a producer's name, markers in the order of the log, what is told when."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import Marker, Origin, ProducerIdentity, VerificationGuard
from millstream.formats.records.batch import HEADER as HEADER_LAYOUT
from millstream.formats.records.batch import HEADER_SIZE, LOG_OVERHEAD, MAGIC_V2, NO_SEQUENCE, BatchHeader, read_header
from millstream.formats.records.compression import Codec
from millstream.formats.records.record import Record, build_batch
from millstream.node.coordination.core.state_machine import CoordinatorRecord, CoordinatorResult, Timers
from millstream.node.coordination.replay import replay_batches
from millstream.node.coordination.runtime import CoordinatorRuntime
from millstream.node.metadata.topic_names import CONSUMER_OFFSETS_TOPIC
from tests.unit.node.cluster.test_coordinator_shell import (
    Groups,
    Replicated,
    code_of,
    environment,
    partition,
    story,
    turns,
)
from tests.unit.node.coordination.replaying import finished

pytestmark = pytest.mark.plain  # partitions are simple fakes

PRODUCER = ProducerIdentity(7, 3)
COMMIT = Marker(7, 3, 1, True, 2)


class Pending:
    """A state machine that takes part in transactions."""

    def __init__(self) -> None:
        self.timers = Timers()
        self.heard: list[Any] = []

    def replay(self, key: bytes, value: bytes | None) -> None:
        self.heard.append(key)

    def replay_pending(self, producer_id: int, producer_epoch: int, key: bytes, value: bytes | None) -> None:
        self.heard.append((producer_id, producer_epoch, key))

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        self.heard.append((producer_id, committed))

    def loaded(self, now_ms: int) -> None: ...


class Transactional(Replicated):
    """A partition that remembers what was appended, and refuses when told so."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.appended: list[Any] = []
        self.marker_refusal: KafkaError | None = None

    def append(self, batch: memoryview, now_ms: int, **options: Any) -> None:
        super().append(batch, now_ms)
        self.appended.append((read_header(batch), options))

    def append_marker(self, marker: Marker, now_ms: int) -> None:
        if self.marker_refusal is not None:
            raise self.marker_refusal
        self.log.log_end_offset += 1
        self.appended.append(marker)


def shell_on(kept: Transactional, **options: Any) -> tuple[CoordinatorRuntime, Pending]:
    state = Pending()
    return CoordinatorRuntime(partition(kept), state, environment(), participant=state, **options), state


def put(key: bytes) -> Callable[[int], CoordinatorResult[bytes]]:
    return lambda now_ms: CoordinatorResult(key, [CoordinatorRecord(key, b"")], producer=PRODUCER)


def test_records_are_written_in_the_name_of_the_producer() -> None:
    async def main() -> None:
        kept = Transactional()
        runtime, state = shell_on(kept, needs_guard=lambda: True)
        guard = VerificationGuard()
        assert await runtime.run(put(b"k"), guard) == b"k"
        (header, options) = kept.appended[0]
        assert isinstance(header, BatchHeader) and header.is_transactional and not header.is_control
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, NO_SEQUENCE)
        assert options == {"origin": Origin.COORDINATOR, "guard": guard, "needs_guard": True}
        assert state.heard == [(7, 3, b"k")]

    story(main)


def test_a_marker_is_applied_where_it_stands_and_told_when_it_is_committed() -> None:
    async def main() -> None:
        kept = Transactional(replicas=3)
        runtime, state = shell_on(kept)
        write = asyncio.ensure_future(runtime.run(put(b"k")))
        await turns()
        end = asyncio.ensure_future(runtime.end_transaction(COMMIT))
        await turns()
        assert state.heard == [(7, 3, b"k"), (7, True)] and kept.appended[1] is COMMIT
        assert not write.done() and not end.done() and not runtime.is_settled
        kept.commit()
        await end
        assert await write == b"k"

    story(main)


def test_a_marker_that_cannot_be_committed_closes_the_shell() -> None:
    async def main() -> None:
        kept = Transactional(replicas=3)
        runtime, _ = shell_on(kept)
        end = asyncio.ensure_future(runtime.end_transaction(COMMIT))
        await turns()
        kept.lose()
        assert await code_of(end) == ErrorCode.NOT_COORDINATOR
        assert await code_of(runtime.end_transaction(COMMIT)) == ErrorCode.NOT_COORDINATOR

    story(main)


@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED])
def test_who_is_fenced_hears_just_that_and_nothing_is_applied(code: ErrorCode) -> None:
    async def main() -> None:
        kept = Transactional()
        runtime, state = shell_on(kept)
        kept.marker_refusal = KafkaError(code, "fenced")
        assert await code_of(runtime.end_transaction(COMMIT)) == code
        assert state.heard == [] and not runtime.is_closed

    story(main)


def test_markers_for_groups_get_the_responses_of_partition_leaders() -> None:
    async def main() -> None:
        kept = Transactional()
        world = Groups(kept)
        await world.groups.end_transaction(0, COMMIT)
        assert kept.appended == [COMMIT]
        kept.refusal = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "one of two")
        assert await code_of(world.groups.end_transaction(0, COMMIT)) == ErrorCode.NOT_ENOUGH_REPLICAS
        kept.refusal = None
        kept.is_leader = False
        assert await code_of(world.groups.end_transaction(0, COMMIT)) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await code_of(world.groups.end_transaction(1, COMMIT)) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert CONSUMER_OFFSETS_TOPIC == "__consumer_offsets"
        world.groups.close()

    story(main)


def control(kind: int, at: int) -> bytearray:
    rows = [Record(key=bytes((0, 0, 0, kind)), value=bytes(6), timestamp=0)]
    return build_batch(rows, base_offset=at, producer_id=7, producer_epoch=3, transactional=True, control=True)


def data(key: bytes, at: int, **options: Any) -> bytearray:
    return build_batch([Record(key=key, value=b"", timestamp=0)], base_offset=at, **options)


def empty(at: int, attributes: int) -> bytearray:
    batch = bytearray(HEADER_SIZE)
    HEADER_LAYOUT.pack_into(batch, 0, at, HEADER_SIZE - LOG_OVERHEAD, 0, MAGIC_V2, 0, attributes, 0, 0, 0, 7, 3, -1, 0)
    return batch


def test_records_and_markers_of_a_log_are_replayed() -> None:
    of_transaction = {"producer_id": 7, "producer_epoch": 3, "transactional": True}
    log = b"".join(
        (
            control(0, 0),  # of a transaction whose records are gone
            data(b"plain", 1),
            data(b"pending", 2, codec=Codec.GZIP, **of_transaction),
            empty(3, Codec.GZIP),
            empty(4, 0x30),  # a marker whose record is gone
            control(2, 5),  # no marker of a transaction
            control(1, 6),
        )
    )
    state = Pending()
    assert finished(replay_batches(log, 0, state, state)) == 7
    assert state.heard == [(7, False), b"plain", (7, 3, b"pending"), (7, True)]
    state = Pending()
    assert finished(replay_batches(log, 0, state, None)) == 7
    assert state.heard == [b"plain"]
