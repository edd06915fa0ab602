"""Fetching from whoever leads a partition, through leader changes and broker restarts."""

from dataclasses import dataclass
from uuid import UUID

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.messages import request_schema
from millstream.formats.protocol.primitives import MalformedMessage
from millstream.raw_client.errors import (
    UNREADABLE,
    ConnectionLostError,
    NotYetError,
    OffsetOutOfRangeError,
    UnreadableError,
    error_code,
    refusal,
)
from millstream.raw_client.fetch_codec import LAST_WITH_NAMES, FetchAnswer, Fetched, fetch_fields, parse_answer
from millstream.raw_client.log_offsets import EARLIEST, LATEST, LogOffsets
from millstream.raw_client.patience import Patience
from millstream.raw_client.pool import ConnectionPool
from millstream.raw_client.routing import Leader, Routing
from millstream.raw_client.topics import TopicPartition


@dataclass(frozen=True, slots=True)
class Wanted:
    partition: TopicPartition
    offset: int
    max_bytes: int
    max_wait_ms: int
    min_bytes: int
    read_committed: bool
    topic_id: UUID | None
    """The topic this must be, if not just any of the name."""


class Fetcher:
    def __init__(self, routing: Routing, pool: ConnectionPool) -> None:
        self._routing = routing
        self._pool = pool

    def fetch(self, wanted: Wanted, patience: Patience) -> Fetched:
        return patience.keep_trying(lambda: self._once(wanted, patience))

    def _once(self, wanted: Wanted, patience: Patience) -> Fetched:
        place = wanted.partition
        leader = self._routing.leader(place, patience)
        if wanted.topic_id is not None and wanted.topic_id != leader.topic_id:
            raise refusal(f"topic {place.topic!r} with id {wanted.topic_id}", ErrorCode.UNKNOWN_TOPIC_ID)
        try:
            error, fetched = self._ask(wanted, leader, patience)
        except ConnectionLostError:
            self._routing.lost(leader, place.topic)
            raise
        code = error_code(error)
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._check_range(place, wanted.offset, patience)
            raise NotYetError(str(place), code)  # it is there after all: the log grew, or another leader knows it
        if code in UNREADABLE:
            raise UnreadableError(place, wanted.offset, code)
        if code == ErrorCode.UNKNOWN_TOPIC_ID:
            self._routing.refresh([place.topic], patience)
            raise refusal(f"topic {place.topic!r}", code)
        if error:
            raise self._routing.judge(str(place), place.topic, code, patience)
        return fetched

    def _ask(self, wanted: Wanted, leader: Leader, patience: Patience) -> FetchAnswer:
        fields = fetch_fields(
            wanted.partition.topic,
            leader.topic_id,
            wanted.partition.partition,
            wanted.offset,
            leader_epoch=leader.epoch,
            max_bytes=wanted.max_bytes,
            max_wait_ms=wanted.max_wait_ms,
            min_bytes=wanted.min_bytes,
            read_committed=wanted.read_committed,
        )
        schema = request_schema("fetch")
        wait_s = self._pool.wait_s(patience, wanted.max_wait_ms)
        with self._pool.borrow(leader.address, wait_s) as connection:
            version = connection.version_of("fetch", None if leader.topic_id.int else LAST_WITH_NAMES)
            sent = connection.send_body(schema, version, schema.encode(fields, version), wait_s)
            frame, position = connection.receive_frame(sent, wait_s)
        try:
            return parse_answer(frame, position, version)
        except MalformedMessage as error:
            raise ConnectionLostError(str(leader.address), f"its answer to a fetch makes no sense: {error}") from error

    def _check_range(self, place: TopicPartition, offset: int, patience: Patience) -> None:
        log = LogOffsets(self._routing, self._pool)
        start = log.find({place: EARLIEST}, patience, read_committed=False)[place].offset
        end = log.find({place: LATEST}, patience, read_committed=False)[place].offset
        if not start <= offset <= end:
            why = "it was deleted, by retention most likely" if offset < start else "nothing was written there yet"
            raise OffsetOutOfRangeError(
                f"{place} has the offsets from {start} to {end}, not {offset}: {why}; start within them", start, end
            )
