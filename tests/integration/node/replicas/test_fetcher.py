"""A follower and a leader that is played by the test: it lies about nothing, but dies at any byte, hangs, and errs."""

import asyncio
import random
import struct
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest

from millstream.config.broker_config import BrokerConfig
from millstream.config.loading import load_broker_config
from millstream.config.topic_config import LogConfig
from millstream.formats.model.errors import ErrorCode
from millstream.formats.model.identifiers import TopicName, TopicPartition
from millstream.formats.protocol.primitives import Cursor
from millstream.formats.protocol.schema import Message, request_schema, response_schema
from millstream.formats.records.batch import iterate_headers
from millstream.formats.records.record import Record, build_batch
from millstream.node.environment import Environment
from millstream.node.metadata.image import PartitionState
from millstream.node.replicas.core.leader import Proposal
from millstream.node.replicas.fetcher import ReplicaFetcher
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.throttle import ReplicaThrottle
from millstream.node.runtime.disk import RealDisk
from millstream.node.runtime.real_environment import real_environment
from millstream.node.storage.log.directory import LogDirectory
from millstream.node.storage.log.tiered_part import TierStart
from tests.waiting import TIMEOUT_SECONDS

TOPIC_ID = UUID(int=77)
AT = TopicPartition(TopicName("t"), 0)
NOT_LED = PartitionState(replicas=(1, 2), isr=(1, 2), leader=1, leader_epoch=5, partition_epoch=0)


class Leader:
    """Responds to Fetch as the test says; every connection is one task."""

    def __init__(self, respond: Callable[[Message, int], bytes | None]) -> None:
        """`respond` gets the request and how many there were before; None closes the connection."""
        self._respond = respond
        self.fetches: list[Message] = []
        self.cut_at: int | None = None
        self.address = ("127.0.0.1", 0)
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "Leader":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = self._server.sockets[0].getsockname()[:2]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(size)
                key, version, correlation_id, length = struct.unpack_from(">hhih", frame)
                cursor = Cursor(frame, 10 + length + 1)
                head = struct.pack(">i", correlation_id)
                if key == 18:
                    keys = [{"api_key": 1, "min_version": 4, "max_version": 18}]
                    keys += [{"api_key": 2, "min_version": 1, "max_version": 10}]
                    body: bytes | None = response_schema("api_versions").encode({"api_keys": keys}, version)
                elif key == 1:
                    head += b"\0"
                    request = request_schema("fetch").read(cursor, version)
                    self.fetches.append(request)
                    body = self._respond(request, len(self.fetches) - 1)
                else:
                    head += b"\0"
                    asked = request_schema("list_offsets").read(cursor, version).topics[0].partitions[0]
                    offset = {-1: 9, -2: 6}[asked.timestamp]
                    row = {"partition_index": 0, "offset": offset}
                    body = response_schema("list_offsets").encode(
                        {"topics": [{"name": "t", "partitions": [row]}]}, version
                    )
                if body is None:
                    break
                whole = struct.pack(">i", len(head) + len(body)) + head + body
                cut, self.cut_at = self.cut_at, None
                writer.write(whole if cut is None or key != 1 else whole[:cut])
                await writer.drain()
                if cut is not None and key == 1:
                    break
                if key == 1 and not self.fetches[-1].topics:
                    await asyncio.sleep(0.01)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def fetched(
    records: bytes = b"", *, error: int = 0, high_watermark: int = 0, session: int = 3, **fields: object
) -> bytes:
    row: dict[str, object] = {
        "partition_index": 0,
        "error_code": error,
        "high_watermark": high_watermark,
        "log_start_offset": 0,
    }
    row |= {"records": records, **fields}
    respond = {"session_id": session, "responses": [{"topic_id": TOPIC_ID, "partitions": [row]}]}
    return response_schema("fetch").encode(respond, 18)


def nothing(session: int = 3) -> bytes:
    return response_schema("fetch").encode({"session_id": session}, 18)


def batches(first: int, count: int, epoch: int = 4) -> bytes:
    """Batches of one record each."""
    rows = [
        build_batch([Record(None, b"value %d" % offset, timestamp=1)], base_offset=offset, leader_epoch=epoch)
        for offset in range(first, first + count)
    ]
    return b"".join(bytes(row) for row in rows)


class Node:
    """The node around the fetcher."""

    node_id = 2

    def __init__(self, config: BrokerConfig, address: Callable[[], tuple[str, int]]) -> None:
        self.config = config
        self._address = address
        self.connections: list[tuple[int, str]] = []

    def broker_epoch(self) -> int:
        return 20

    def cluster_id(self) -> str | None:
        return "c"

    def address_of(self, broker_id: int) -> tuple[str, int]:
        assert broker_id == 1
        return self._address()

    def connection_lost(self, broker_id: int) -> None:
        self.connections.append((broker_id, "lost"))

    async def tier_start(self, partition: Partition) -> TierStart:
        raise AssertionError("no log here is tiered")

    def connection_made(self, broker_id: int) -> None:
        self.connections.append((broker_id, "made"))


class Nobody:
    """The cluster around a partition that never leads."""

    node_id = 2

    def has_lost_controller(self) -> bool:
        return False

    def is_eligible(self, broker_id: int, broker_epoch: int, state: object = None) -> bool:
        return False

    def is_alive(self, broker_id: int) -> bool:
        return True

    def broker_epoch(self) -> int:
        return 20

    def lag_max_ms(self) -> int:
        return 1000

    def submit(self, partition: Partition, proposal: Proposal) -> None:
        raise AssertionError("a follower proposes nothing")


class Follower:
    def __init__(self, directory: Path, environment: Environment) -> None:
        self.environment = environment
        self.logs = LogDirectory(RealDisk(), str(directory))
        self.logs.start(0)
        self.partition = Partition(
            AT, TOPIC_ID, lambda: self.logs.create(AT, TOPIC_ID, LogConfig(), 0), environment, Nobody()
        )
        self.partition.become_follower(NOT_LED)
        config = load_broker_config(data_dir=str(directory), overrides=["replica.fetch.backoff.ms=30"])
        self.node = Node(config, lambda: ("127.0.0.1", 1))
        throttle = ReplicaThrottle("x", 2, lambda topic: {}, lambda: 1 << 60, environment.loop.time)
        self.fetcher = ReplicaFetcher(1, self.node, throttle, environment)

    def follow(self, leader: Leader) -> None:
        self.node._address = lambda: leader.address
        self.fetcher.add(self.partition)

    async def until(self, check: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not check():  # noqa: ASYNC110  # what is waited for is in another object
                await asyncio.sleep(0.005)

    @property
    def end(self) -> int:
        return self.partition.log.log_end_offset

    def content(self) -> bytes:
        log = self.partition.log
        content, offset = b"", log.log_start_offset
        while offset < log.log_end_offset:  # a slice ends with its segment
            piece = log.read(offset, 1 << 20, up_to=log.log_end_offset, at_least_one=True)
            piece.prepare()
            content += piece.read()
            offset = [header.last_offset + 1 for _, header in iterate_headers(content)][-1]
        return content


Scenario = Callable[[Follower], Awaitable[None]]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[[Scenario], None]]:
    def run_it(scenario: Scenario) -> None:
        async def main() -> None:
            follower = Follower(tmp_path, real_environment(asyncio.get_running_loop()))
            try:
                await scenario(follower)
            finally:
                follower.fetcher.close()

        asyncio.run(main())

    yield run_it


def test_what_the_leader_has_is_copied_and_shown_when_it_is_committed(run: Callable[[Scenario], None]) -> None:
    def respond(request: Message, count: int) -> bytes:
        if count == 0:
            return fetched(batches(0, 3) + batches(3, 1)[:-5], high_watermark=2)  # the last one is cut short
        return fetched(high_watermark=3) if count == 1 else nothing()

    async def scenario(follower: Follower) -> None:
        async with Leader(respond) as leader:
            follower.follow(leader)
            await follower.until(lambda: follower.partition.high_watermark == 3)
            assert follower.content() == batches(0, 3)
            await follower.until(lambda: len(leader.fetches) > 3)
            first, second, third = leader.fetches[:3]
            assert (first.session_epoch, second.session_epoch, third.session_epoch) == (0, 1, 2)
            assert first.replica_state.replica_id == 2 and first.replica_state.replica_epoch == 20
            row = second.topics[0].partitions[0]
            assert (row.current_leader_epoch, row.fetch_offset, row.last_fetched_epoch) == (5, 3, 4)
            assert third.topics == [], "the session knows"

    run(scenario)


def test_a_leader_that_dies_at_any_byte_leaves_a_clean_log(run: Callable[[Scenario], None]) -> None:
    size = len(fetched(batches(0, 2), high_watermark=2)) + 9

    def respond(request: Message, count: int) -> bytes:
        if not request.topics:
            return nothing()
        offset = request.topics[0].partitions[0].fetch_offset
        return fetched(batches(offset, 2), high_watermark=offset)

    async def scenario(follower: Follower) -> None:
        async with Leader(respond) as leader:
            rng = random.Random(1)
            cuts = [0, 1, 3, 4, 5, size - 1, *(rng.randrange(size) for _ in range(20))]
            leader.cut_at = cuts.pop()
            follower.follow(leader)
            while cuts:
                before = follower.end
                leader.cut_at = cuts.pop()

                def is_cut_and_refilled(before: int = before) -> bool:
                    return leader.cut_at is None and follower.end > before

                await follower.until(is_cut_and_refilled)
            content = follower.content()
            offsets = [header.base_offset for _, header in iterate_headers(content)]
            assert offsets == list(range(len(offsets)))
            made = follower.node.connections[::2]
            assert made == [(1, "made")] * len(made) and set(follower.node.connections[1::2]) == {(1, "lost")}

    run(scenario)


def test_damaged_batches_are_not_taken(run: Callable[[Scenario], None]) -> None:
    good = batches(0, 3)

    def respond(request: Message, count: int) -> bytes:
        if count < 5:
            damaged = bytearray(good)
            damaged[-1 - count] ^= 1
            return fetched(bytes(damaged), high_watermark=3)
        return fetched(good, high_watermark=3) if count == 5 else nothing()

    async def scenario(follower: Follower) -> None:
        async with Leader(respond) as leader:
            follower.follow(leader)
            await follower.until(lambda: follower.end == 3)
            assert follower.content() == good and len(leader.fetches) >= 6

    run(scenario)


def test_a_diverging_epoch_cuts_back(run: Callable[[Scenario], None]) -> None:
    def respond(request: Message, count: int) -> bytes:
        if count == 0:
            return fetched(batches(0, 5), high_watermark=2)
        if count == 1:
            return fetched(diverging_epoch={"epoch": 4, "end_offset": 3})
        if count == 2:
            row = request.topics[0].partitions[0]
            assert (row.fetch_offset, row.last_fetched_epoch) == (3, 4)
            return fetched(batches(3, 1, epoch=5), high_watermark=4)
        return nothing()

    async def scenario(follower: Follower) -> None:
        async with Leader(respond) as leader:
            follower.follow(leader)
            await follower.until(lambda: follower.partition.high_watermark == 4)
            assert follower.content() == batches(0, 3) + batches(3, 1, epoch=5)
            assert follower.partition.log.epochs.entries() == [(4, 0), (5, 3)]

    run(scenario)


def test_out_of_range_starts_again_where_the_leader_begins(run: Callable[[Scenario], None]) -> None:
    def respond(request: Message, count: int) -> bytes:
        if count == 0:
            return fetched(error=ErrorCode.OFFSET_OUT_OF_RANGE)
        return fetched(batches(6, 3), high_watermark=9) if count == 1 else nothing()

    async def scenario(follower: Follower) -> None:
        async with Leader(respond) as leader:
            follower.follow(leader)
            await follower.until(lambda: follower.end == 9)
            assert follower.partition.log.log_start_offset == 6

    run(scenario)


@pytest.mark.parametrize(
    "error", [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH], ids=lambda code: code.name
)
def test_a_session_that_is_gone_is_begun_again(error: ErrorCode, run: Callable[[Scenario], None]) -> None:
    def respond(request: Message, count: int) -> bytes:
        if count == 0:
            return fetched(batches(0, 1), high_watermark=0)
        if count == 1:
            return response_schema("fetch").encode({"error_code": error}, 18)
        return fetched(batches(1, 1), high_watermark=2, session=4) if count == 2 else nothing(4)

    async def scenario(follower: Follower) -> None:
        async with Leader(respond) as leader:
            follower.follow(leader)
            await follower.until(lambda: follower.end == 2)
            third = leader.fetches[2]
            assert third.session_epoch == 0 and third.topics[0].partitions[0].fetch_offset == 1

    run(scenario)


def test_a_leader_without_room_for_sessions(run: Callable[[Scenario], None]) -> None:
    def respond(request: Message, count: int) -> bytes:
        assert request.session_epoch == 0
        offset = request.topics[0].partitions[0].fetch_offset
        return fetched(batches(offset, 1) if offset < 5 else b"", high_watermark=offset, session=0)

    async def scenario(follower: Follower) -> None:
        async with Leader(respond) as leader:
            follower.follow(leader)
            await follower.until(lambda: follower.partition.high_watermark == 5)

    run(scenario)


def test_a_response_of_an_earlier_leadership_is_dropped(run: Callable[[Scenario], None]) -> None:
    async def scenario(follower: Follower) -> None:
        def respond(request: Message, count: int) -> bytes:
            if count == 0:
                # While this response is under way, the follower hears of another epoch of the same leader.
                follower.partition.become_follower(
                    PartitionState(replicas=(1, 2), isr=(1, 2), leader=1, leader_epoch=6, partition_epoch=1)
                )
                return fetched(batches(0, 2), high_watermark=2)
            if count == 1:
                assert request.topics[0].partitions[0].current_leader_epoch == 6
                assert request.topics[0].partitions[0].fetch_offset == 0
                return fetched(batches(0, 1), high_watermark=1)
            return nothing()

        async with Leader(respond) as leader:
            follower.follow(leader)
            await follower.until(lambda: follower.end == 1)

    run(scenario)


def test_a_new_partition_does_not_wait_for_a_fetch_that_does(run: Callable[[Scenario], None]) -> None:
    async def scenario(follower: Follower) -> None:
        hang = asyncio.Event()

        class Slow(Leader):
            async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                if hang.is_set():
                    await super()._serve(reader, writer)
                    return
                hang.set()
                await reader.read()  # says nothing at all until the other side hangs up
                writer.close()

        def respond(request: Message, count: int) -> bytes:
            return fetched(batches(0, 1), high_watermark=1) if count == 0 else nothing()

        async with Slow(respond) as leader:
            follower.follow(leader)
            await hang.wait()
            follower.fetcher.add(follower.partition)
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await follower.until(lambda: follower.end == 1)

    run(scenario)
