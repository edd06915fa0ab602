"""The topic `_schemas`: read continuously, and written so that each record is decided with all earlier records known.

Several registries write, and none of them is a leader. To write, a registry opens a session: a new epoch of one shared
producer id (from the transaction coordinator), announced to the partition by a NOOP record. From then on the partition
refuses older epochs, so only this registry can write after that NOOP. It reads up to the NOOP, decides, and writes. If
that is refused, another registry has opened a session, and it starts again. `docs/schema-registry.md` has the proof.

The topic is created if it is missing; otherwise it must have one partition and be compacted.
"""

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from millstream.formats.model.errors import KafkaError
from millstream.formats.records.batch import BatchHeader, iterate_headers
from millstream.formats.records.opening import OpeningLimits, records_between
from millstream.formats.records.record import Record, build_batch
from millstream.raw_client import (
    LATEST,
    Cluster,
    ErrorCode,
    OffsetOutOfRangeError,
    RefusedError,
    TopicPartition,
    UnreachableError,
    WireError,
)
from millstream.raw_client.errors import error_code, refusal
from millstream.raw_client.producing import Producer
from millstream.raw_client.transactions import Identity, Transactions
from millstream.registry.errors import RegistryError, store_failed, store_timed_out, too_large
from millstream.registry.records import Entry, Key, Kind, decode, encode_key, encode_value
from millstream.registry.state import HIGHEST_IDS, RegistryState

REPLICAS = 3
_TOPIC_RESOURCE = 2
_POLICY = "cleanup.policy"


def prepare_topic(cluster: Cluster, name: str) -> UUID:
    """The id of the topic."""
    found = cluster.topics([name]).get(name)
    if found is None:
        replicas = min(REPLICAS, len(cluster.brokers()))
        try:
            cluster.create_topic(name, 1, replicas, {_POLICY: "compact"})
        except RefusedError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        found = cluster.topics([name]).get(name)
        if found is None:
            raise store_failed(f"topic {name!r} was created, and is not there")
    if len(found.partitions) != 1:
        raise store_failed(
            f"topic {name!r} has {len(found.partitions)} partitions, but schemas need one order: name another topic"
        )
    policy = _cleanup_policy(cluster, name)
    if policy != "compact":
        raise store_failed(
            f"topic {name!r} has cleanup.policy={policy}, under which schemas would be deleted: "
            f"millstream topic alter {name} --set cleanup.policy=compact"
        )
    return found.topic_id


def _cleanup_policy(cluster: Cluster, name: str) -> str:
    resource = {"resource_type": _TOPIC_RESOURCE, "resource_name": name, "configuration_keys": [_POLICY]}
    (row,) = cluster.call("describe_configs", resources=[resource]).results
    if row.error_code:
        raise refusal(f"the configuration of topic {name!r}", error_code(row.error_code), row.error_message)
    return next((str(config.value) for config in row.configs if config.name == _POLICY), "")


def _pause_after(error: Exception) -> float:
    """Longer after a refusal that an administrator must end: the cluster logs and audits each attempt."""
    return _REFUSED_PAUSE_SECONDS if _is_not_allowed(error) else _PAUSE_SECONDS


def _is_not_allowed(error: Exception) -> bool:
    return isinstance(error, RefusedError) and error.code in _NOT_ALLOWED


TOPIC = "_schemas"
_PAUSE_SECONDS, _REFUSED_PAUSE_SECONDS = 0.5, 30.0
_NOT_ALLOWED = frozenset(
    {
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
)
SESSION_SECONDS = 60.0
"""How long a session is used: far less than brokers remember a producer id or a transactional id."""
_LAST_EPOCH = 32_767
_FETCH_BYTES = 8 << 20
_FETCH_WAIT_MS = 500
_BATCH_LIMITS = OpeningLimits(max_bytes=16 << 20, max_records=10_000)
"""Larger batches are skipped, here and by brokers that check schema ids: no registry writes such batches."""
_JOIN_TIMEOUT_SECONDS = 2.0
_FETCH_TIMEOUT_SECONDS = 5.0
"""A fetch that takes longer makes the registry not ready."""
_TRANSACTION_TIMEOUT_MS = 60_000
"""Required by the coordinator, although no transaction is begun."""
_LOST = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)
_TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})

_log = logging.getLogger(__name__)


class _SessionLostError(Exception):
    """Another registry has opened a session."""


@dataclass(slots=True)
class _WriterSession:
    identity: Identity
    producer: Producer
    since: float
    next_sequence: int = 0


class SchemaLog:
    """The topic as one registry has read it. `state` is read under `lock`."""

    def __init__(self, cluster: Cluster, topic: str = TOPIC) -> None:
        self._cluster = cluster
        self.topic = topic
        self._place = TopicPartition(topic, 0)
        self._transactional_id = f"millstream-schema-registry-{topic}"
        self._transactions = Transactions(cluster, timeout_ms=_TRANSACTION_TIMEOUT_MS)
        self._state = RegistryState()
        self._loaded = False
        """Whether all records that existed at the start are read. Before that, nothing is reported as missing."""
        self._fatal_error: RegistryError | WireError | None = None
        """An error that does not go away by waiting, such as a topic with the wrong settings."""
        self.lock = threading.RLock()
        self._moved = threading.Condition(self.lock)
        self._position = 0
        self._last_writer = (-1, -1)
        self._registry_producer = -1
        """The producer id of the last session in the topic."""
        self._writing = threading.Lock()
        self._session: _WriterSession | None = None
        self._topic_id: UUID | None = None
        self._not_ready_reason = "the topic has not been read yet"
        self._progress_at = time.monotonic()
        self._closed = False
        self._tail = threading.Thread(target=self._read_topic, name="schemas-tail", daemon=True)

    def start(self, timeout_s: float | None = None, *, may_be_refused: bool = False) -> None:
        """Returns when all existing records are read. With `timeout_s` also after that time: reading continues.

        Raises what makes reading impossible. With `may_be_refused` a wrong password and missing rights are logged
        instead, and tried again.
        """
        self._tail.start()
        with self._moved:
            self._moved.wait_for(
                lambda: self._loaded or self._fatal_error is not None,
                self._timeout_s if timeout_s is None else timeout_s,
            )
            if self._fatal_error is not None:
                if may_be_refused and _is_not_allowed(self._fatal_error):
                    return
                raise self._fatal_error
            if self._loaded:
                return
        if timeout_s is None:
            raise store_timed_out(self._not_ready_reason)
        _log.warning("schemas_not_read_yet topic=%s reason=%s", self.topic, self._not_ready_reason)

    def close(self) -> None:
        with self._moved:
            self._closed = True
            self._moved.notify_all()
        if self._tail.is_alive():
            self._tail.join(_JOIN_TIMEOUT_SECONDS)  # it may be waiting for an unreachable cluster
        with self._writing:
            self._close_session()

    @property
    def state(self) -> RegistryState:
        if not self._loaded:
            raise store_timed_out(f"the schemas have not been read yet: {self._not_ready_reason}")
        return self._state

    @property
    def not_ready_reason(self) -> str | None:
        """Why the topic is not being read now, or None."""
        idle_s = time.monotonic() - self._progress_at
        if not self._not_ready_reason and idle_s > _FETCH_TIMEOUT_SECONDS:
            return f"the cluster has not responded for {idle_s:.0f} s"
        return self._not_ready_reason or None

    def catch_up(self) -> None:
        """Returns when all records have been read that were written before the call."""
        try:
            end = self._cluster.offsets({self._place: LATEST})[self._place].offset
        except UnreachableError as error:
            raise store_timed_out(str(error)) from error
        except WireError as error:
            raise store_failed(str(error)) from error
        self._wait_for(end)

    def write(self, decide: Callable[[RegistryState], list[Entry]]) -> None:
        """Calls `decide` with the state, writes its records, and returns when they have been read back.

        `decide` is called again if another registry wrote in the meantime. It raises to refuse the change.
        """
        if not self._writing.acquire(timeout=self._timeout_s):
            raise store_timed_out("earlier writes are still waiting for the cluster")
        try:
            self._write(decide)
        except UnreachableError as error:
            self._close_session()
            raise store_timed_out(str(error)) from error
        except WireError as error:
            self._close_session()
            raise _refusal(error) from error
        finally:
            self._writing.release()

    # Writing

    def _write(self, decide: Callable[[RegistryState], list[Entry]]) -> None:
        give_up_at = time.monotonic() + self._timeout_s
        pause_s = 0.01
        while True:
            try:
                self._ensure_session()
                with self.lock:
                    entries = decide(self.state)
                if entries:
                    self._wait_for(self._append(entries) + 1)
                return
            except _SessionLostError:
                self._close_session()
                if time.monotonic() > give_up_at:
                    raise store_timed_out("other registries write at the same time") from None
                time.sleep(random.uniform(0, pause_s))
                pause_s = min(pause_s * 2, 1.0)

    def _ensure_session(self) -> None:
        """After this the state has all records, and a write of another registry would make the next write here fail."""
        session = self._session
        if session is not None and time.monotonic() - session.since < SESSION_SECONDS:
            self.catch_up()
            if self._last_writer == (session.identity.producer_id, session.identity.epoch):
                return
        self._close_session()
        self.catch_up()
        identity = self._transactions.take(self._transactional_id, two_phase=False)
        if self._registry_producer not in (-1, identity.producer_id):
            self._retire(self._registry_producer)
        self._session = _WriterSession(
            identity, Producer(self._cluster, delivery_timeout_s=self._timeout_s), time.monotonic()
        )
        self._wait_for(self._append([self._noop()]) + 1)

    def _retire(self, producer_id: int) -> None:
        """The shared producer id has changed, because its epochs are used up or it expired: fences the old one."""
        batch = _batch([self._noop()], producer_id, _LAST_EPOCH, 0)
        producer = Producer(self._cluster, delivery_timeout_s=self._timeout_s)
        try:
            producer.send(self._place, batch, 1)
            producer.flush()
        except RefusedError as error:
            if error.code not in _LOST:
                raise  # otherwise it was fenced before
        finally:
            producer.close()

    def _noop(self) -> Entry:
        with self.lock:
            return noop(self._state)

    def _append(self, entries: list[Entry]) -> int:
        """The offset of the last record, when all in-sync replicas have it."""
        session = self._session
        assert session is not None
        identity = session.identity
        batch = _batch(entries, identity.producer_id, identity.epoch, session.next_sequence)
        try:
            session.producer.send(self._place, batch, len(entries))
            session.producer.flush()
        except RefusedError as error:
            if error.code in _LOST:
                raise _SessionLostError from error
            raise
        session.next_sequence += len(entries)
        return session.producer.written[self._place].last_offset

    def _close_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.producer.close()

    @property
    def _timeout_s(self) -> float:
        return float(self._cluster.timeout_s)

    # Reading

    def _wait_for(self, position: int) -> None:
        with self._moved:
            done = self._moved.wait_for(
                lambda: (self._loaded and self._position >= position) or self._closed, self._timeout_s
            )
            if self._closed:
                raise store_timed_out("this registry is shutting down")
            if not done:
                raise store_timed_out(f"offset {position - 1} of {self.topic} was not read: {self._not_ready_reason}")

    def _read_topic(self) -> None:
        while not self._closed:
            if self._topic_id is None and not self._found_topic():
                continue
            try:
                fetched = self._cluster.fetch(
                    self._place,
                    self._position,
                    max_bytes=_FETCH_BYTES,
                    max_wait_ms=_FETCH_WAIT_MS,
                    topic_id=self._topic_id,
                )
                self._take(fetched.data)
                self._note_progress(loaded=self._position >= fetched.last_stable_offset)
            except OffsetOutOfRangeError as error:
                self._restart(error.log_start, str(error))
            except RefusedError as error:
                if error.code in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                    self._read_new_topic(str(error))
                else:
                    self._pause(str(error), _pause_after(error))
            except (WireError, KafkaError) as error:
                self._pause(str(error))

    def _found_topic(self) -> bool:
        """At the start, when the cluster may not be reachable yet."""
        try:
            self._topic_id = prepare_topic(self._cluster, self.topic)
        except UnreachableError as error:
            self._pause(str(error))
        except (WireError, RegistryError) as error:
            with self._moved:
                self._fatal_error = error
                self._moved.notify_all()
            self._pause(str(error), _pause_after(error))
        return self._topic_id is not None

    def _note_progress(self, *, loaded: bool) -> None:
        self._progress_at = time.monotonic()
        if loaded or self._loaded:
            self._not_ready_reason = ""
        if loaded and not self._loaded:
            with self._moved:
                self._loaded = True
                self._moved.notify_all()

    def _pause(self, not_ready_reason: str, pause_s: float = _PAUSE_SECONDS) -> None:
        if not_ready_reason != self._not_ready_reason:
            _log.warning("schemas_not_read topic=%s reason=%s", self.topic, not_ready_reason)
        self._not_ready_reason = not_ready_reason
        with self._moved:
            self._moved.wait_for(lambda: self._closed, pause_s)

    def _read_new_topic(self, reason: str) -> None:
        try:
            self._topic_id = prepare_topic(self._cluster, self.topic)
        except (WireError, RegistryError) as error:
            self._pause(str(error))
            return
        self._restart(0, reason)

    def _restart(self, position: int, reason: str) -> None:
        """Reads the topic again: the records that were read are not in it any more."""
        _log.warning("schemas_reread topic=%s from=%d reason=%s", self.topic, position, reason)
        with self._moved:
            self._state = RegistryState()
            self._loaded, self._not_ready_reason = False, "the topic is being read again"
            self._position, self._last_writer, self._registry_producer = position, (-1, -1), -1
            self._moved.notify_all()

    def _take(self, data: memoryview) -> None:
        for at, header in iterate_headers(data):
            batch = data[at : at + header.size]
            if len(batch) < header.size:
                return  # the rest comes with the next fetch
            if header.last_offset < self._position:
                continue
            records = [] if header.is_control else self._records(header, batch)
            with self._moved:
                for record in records:
                    if record.offset >= self._position:
                        self._apply(record, header)
                self._position = header.last_offset + 1
                self._moved.notify_all()

    def _records(self, header: BatchHeader, batch: memoryview) -> list[Record]:
        """An unreadable batch is skipped: any client may write to the topic."""
        try:
            return records_between(header, batch, header.base_offset, header.last_offset, _BATCH_LIMITS)
        except KafkaError as error:
            _log.warning(
                "schemas_batch_skipped topic=%s offset=%d reason=%s", self.topic, header.base_offset, error.message
            )
            return []

    def _apply(self, record: Record, header: BatchHeader) -> None:
        self._last_writer = (header.producer_id, header.producer_epoch)
        try:
            entry = decode(record.key, record.value)
            refused = None if entry is None else self._state.apply(entry)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            _log.warning("schemas_record_skipped topic=%s offset=%d reason=%s", self.topic, record.offset, error)
            return
        if refused:
            _log.warning("schemas_record_refused topic=%s offset=%d reason=%s", self.topic, record.offset, refused)
        of_session = entry is not None and entry.key.kind is Kind.NOOP and HIGHEST_IDS in (entry.value or {})
        if of_session and header.producer_epoch != _LAST_EPOCH:  # this epoch fences an old producer id
            self._registry_producer = header.producer_id


def _refusal(error: WireError) -> RegistryError:
    if isinstance(error, RefusedError) and error.code in _TOO_LARGE:
        return too_large(str(error))
    return store_failed(str(error))


def noop(state: RegistryState) -> Entry:
    """A record that other registries ignore. This one uses it to remember the highest ids."""
    return Entry(Key(Kind.NOOP), {HIGHEST_IDS: dict(state.highest_ids)})


def _batch(entries: list[Entry], producer_id: int, epoch: int, sequence: int) -> bytearray:
    now = time.time_ns() // 1_000_000
    records = [Record(encode_key(entry.key), encode_value(entry.value), timestamp=now) for entry in entries]
    return build_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
