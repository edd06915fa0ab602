"""A transactional producer that follows Kafka's protocol, request by request.

Transaction version 1: partitions are added before writes, and a producer keeps its epoch. Version 2 (KIP-890): the
broker adds partitions, and every transaction has a new epoch.

Retriable errors are retried until the response is final or the timeout ends. A fenced producer must start again. A
producer that cannot continue a transaction must abort it, and requests a new epoch if a batch may still be in flight.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.formats.records.record import Record, build_batch
from millstream.simulator.clients.client import GROUP, TRANSACTION, SimulatedClient
from millstream.simulator.clients.transaction_tracker import At, Transaction, TransactionTracker
from millstream.simulator.clients.workload import Workload

GIVE_UP_SECONDS = 12.0
_VERSIONS: dict[int, dict[str, int]] = {
    1: {
        "init_producer_id": 4,
        "add_partitions_to_txn": 3,
        "add_offsets_to_txn": 3,
        "produce": 11,
        "txn_offset_commit": 4,
        "end_txn": 4,
    },
    2: {"txn_offset_commit": 5, "end_txn": 5},
}
"""API versions by transaction version; the newest for APIs not listed."""
_REFUSED = frozenset(
    (
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
    )
)
"""Errors that mean that this producer is fenced."""
_SEQUENCE_REFUSALS = frozenset((ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID))


class FencedError(Exception):
    """Another instance has taken over, or the state is unknown: start a new instance."""


class MustAbortError(Exception):
    """This transaction cannot be committed. The producer continues after aborting it."""


class TransactionalProducer:
    """One instance. Several may have the same transactional id."""

    def __init__(
        self,
        client: SimulatedClient,
        workload: Workload,
        name: str,
        transactional_id: str,
        *,
        version: int,
        timeout_ms: int,
    ) -> None:
        self.name = name
        self.transactional_id = transactional_id
        self.version = version
        self._client = client
        self._workload = workload
        self._tracker: TransactionTracker = workload.tracker
        self._timeout_ms = timeout_ms
        self._coordinators: dict[tuple[int, str], int] = {}
        self.producer_id = self.epoch = -1
        self._sequences: dict[At, int] = {}
        self._added: set[At] = set()
        self._begun = 0
        self._wants_new_epoch = False
        """Whether a batch may be in flight that must not get into a later transaction."""
        self._has_epoch_since = 0.0
        """When it requested its id and epoch. Later requests of others may have been executed later."""
        self._is_fresh = False
        """Whether it sent no request since, so that no transaction is open that could time out."""

    def log_event(self, what: str) -> None:
        self._workload.log_event(self.name, what)

    # Requests

    async def _request_coordinator(self, kind: int, key: str, api: str, fields: Mapping[str, Any]) -> Message:
        at = (kind, key)
        try:
            if at not in self._coordinators:
                self._coordinators[at] = await self._client.find_coordinator(kind, key)
            version = _VERSIONS[self.version].get(api)
            claim = self._tracker.claims.claim(key, self.name) if api == "init_producer_id" else None
            response = await self._client.request(self._coordinators[at], api, fields, version=version)
            if claim is not None:
                claim.responded_at = self._now()
            return response
        except OSError:
            self._coordinators.pop(at, None)
            raise

    def _identity(self) -> dict[str, Any]:
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
        }

    def _now(self) -> float:
        return self._workload.recorder.now()

    def _deadline(self) -> float:
        return self._client.loop.time() + GIVE_UP_SECONDS

    def _may_go_on(self, deadline: float) -> bool:
        return self._client.loop.time() < deadline and self._workload.writing

    async def _request_until_final(self, kind: int, key: str, api: str, fields: Mapping[str, Any]) -> Message:
        """Retries until the response is final: success or an error that is not retriable. FencedError on timeout."""
        deadline = self._deadline()
        while self._may_go_on(deadline):
            try:
                response = await self._request_coordinator(kind, key, api, fields)
            except OSError:
                await self._client.pause(0.05, 0.3)
                continue
            error = first_error(api, response)
            if not error.retriable:
                return response
            if error != ErrorCode.CONCURRENT_TRANSACTIONS:
                self._coordinators.pop((kind, key), None)
            await self._client.pause(0.02, 0.15)
        raise FencedError(f"{api} got no final response")

    # A producer's life

    async def init_producer(self) -> None:
        """Requests a producer id and epoch. An open transaction of the transactional id is aborted."""
        known, requested_at = self.producer_id >= 0, self._now()
        self._is_fresh = False
        fields = {
            "transactional_id": self.transactional_id,
            "transaction_timeout_ms": self._timeout_ms,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
            "enable2_pc": False,
            "keep_prepared_txn": False,
        }
        response = await self._request_until_final(TRANSACTION, self.transactional_id, "init_producer_id", fields)
        error = ErrorCode(response.error_code)
        if error != ErrorCode.NONE:
            self.log_event(f"{self.transactional_id}: got no epoch: {error.name}")
            raise FencedError(error.name)
        self._take(response.producer_id, response.producer_epoch, requested_at)
        self._wants_new_epoch = False
        why = "continues" if known else "starts"
        self.log_event(f"{self.transactional_id}: {why} as producer {self.producer_id}, epoch {self.epoch}")

    def _take(self, producer_id: int, epoch: int, requested_at: float) -> None:
        if (producer_id, epoch) != (self.producer_id, self.epoch):
            self._sequences.clear()
        self.producer_id, self.epoch = producer_id, epoch
        self._has_epoch_since, self._is_fresh = requested_at, True

    def _check_replaced(self, api: str, error: ErrorCode) -> None:
        """The producer was rejected with its latest id and epoch and without an open transaction: only another client
        may be the cause."""
        workload = self._workload
        if error not in _REFUSED or workload.may_lose_records:
            return
        if not self._tracker.claims.may_have_changed(self.transactional_id, self.name, self._has_epoch_since):
            workload.report(
                "HealthyProducerIsNotFenced",
                f"{self.name} ({self.transactional_id}, producer {self.producer_id}, epoch {self.epoch}) got "
                f"{error.name} for {api}, but no other client has requested the id since it got that epoch",
            )

    def begin(self) -> Transaction:
        self._begun += 1
        self._added.clear()
        name = f"{self.name}/{self._begun}"
        return self._tracker.begin(name, self.transactional_id, self.producer_id, self.epoch)

    async def send(self, transaction: Transaction, batches: Mapping[At, list[tuple[str, Record]]]) -> None:
        """Writes to several partitions at once. Each record comes with its identity."""
        is_first = self._is_fresh and len(batches) == 1
        self._is_fresh = False
        if self.version == 1:
            await self._add_partitions(sorted(set(batches) - self._added))
            is_first = False
        self._added.update(batches)
        writes = [
            asyncio.ensure_future(self._send_batch(transaction, at, records, is_first=is_first))
            for at, records in batches.items()
        ]
        await asyncio.wait(writes)
        failed = [error for write in writes if (error := write.exception()) is not None]
        for error in sorted(failed, key=lambda each: not isinstance(each, FencedError)):
            raise error

    async def _add_partitions(self, partitions: list[At]) -> None:
        if not partitions:
            return
        topics: dict[str, list[int]] = {}
        for topic, partition in partitions:
            topics.setdefault(topic, []).append(partition)
        fields = {
            **{f"v3_and_below_{name}": value for name, value in self._identity().items()},
            "v3_and_below_topics": [{"name": name, "partitions": numbers} for name, numbers in topics.items()],
        }
        response = await self._request_until_final(TRANSACTION, self.transactional_id, "add_partitions_to_txn", fields)
        self._check("add_partitions_to_txn", first_error("add_partitions_to_txn", response))

    def _check(self, api: str, error: ErrorCode) -> None:
        if error in _REFUSED:
            raise FencedError(f"{api}: {error.name}")
        if error != ErrorCode.NONE:
            raise MustAbortError(f"{api}: {error.name}")

    async def _send_batch(
        self, transaction: Transaction, at: At, records: list[tuple[str, Record]], *, is_first: bool
    ) -> None:
        """`is_first`: it is the first request since the producer got its epoch."""
        client, workload = self._client, self._workload
        topic, partition = at
        sequence = self._sequences.get(at, 0)
        batch = bytes(
            build_batch(
                [record for _, record in records],
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                base_sequence=sequence,
                transactional=True,
            )
        )
        for known_by, _ in records:
            transaction.values[known_by] = at
        deadline = self._deadline()
        while self._may_go_on(deadline):
            error, offset = await self._produce(topic, partition, batch)
            if error in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                self._sequences[at] = sequence + len(records)
                if error == ErrorCode.NONE:
                    workload.note_acked(at, offset + len(records) - 1)
                self.log_event(f"{transaction.name} wrote {topic}-{partition} offset {offset} (sequence {sequence})")
                return
            if error in _SEQUENCE_REFUSALS and not workload.may_lose_records:
                workload.report(
                    "AcknowledgedIsDurable",
                    f"{topic}-{partition} rejected sequence {sequence} of {transaction} with {error.name}, although "
                    "all earlier batches were acknowledged",
                )
            if is_first:
                self._check_replaced("produce", error)
            is_first = False
            if error in _REFUSED:
                raise FencedError(f"produce to {topic}-{partition}: {error.name}")
            if not error.retriable:
                raise MustAbortError(f"produce to {topic}-{partition}: {error.name}")
            await client.recover()
        self._wants_new_epoch = self.version == 1
        raise MustAbortError(f"produce to {topic}-{partition} got no final response")

    async def _produce(self, topic: str, partition: int, batch: bytes) -> tuple[ErrorCode, int]:
        client = self._client
        leader = client.leader(topic, partition)
        if leader is None:
            return ErrorCode.LEADER_NOT_AVAILABLE, -1
        rows = [{"index": partition, "records": batch}]
        fields = {
            "transactional_id": self.transactional_id,
            "acks": -1,
            "timeout_ms": 1500,
            "topic_data": [{"name": topic, "topic_id": leader.topic_id, "partition_data": rows}],
        }
        version = _VERSIONS[self.version].get("produce")
        try:
            response = await client.request(leader.node_id, "produce", fields, timeout_s=2.5, version=version)
        except OSError:
            return ErrorCode.NETWORK_EXCEPTION, -1
        row = response.responses[0].partition_responses[0]
        return ErrorCode(row.error_code), row.base_offset

    async def send_offsets(self, transaction: Transaction, group: str, at: At, offset: int) -> None:
        """Commits an offset of a group in the transaction."""
        self._is_fresh = False
        if self.version == 1:
            fields = {**self._identity(), "group_id": group}
            response = await self._request_until_final(TRANSACTION, self.transactional_id, "add_offsets_to_txn", fields)
            self._check("add_offsets_to_txn", first_error("add_offsets_to_txn", response))
        self._added.add(("__consumer_offsets", 0))
        topic, partition = at
        row = {
            "partition_index": partition,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": transaction.name,
        }
        fields = {
            **self._identity(),
            "group_id": group,
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": topic, "partitions": [row]}],
        }
        response = await self._request_until_final(GROUP, group, "txn_offset_commit", fields)
        self._check("txn_offset_commit", first_error("txn_offset_commit", response))
        self.log_event(f"{transaction.name} commits offset {offset} of group {group}")

    async def commit(self, transaction: Transaction) -> None:
        """After FencedError the outcome is unknown, unless the transaction has one."""
        transaction.commit_requested = True
        await self._end(transaction, True)

    async def abort(self, transaction: Transaction) -> None:
        self._tracker.will_abort(transaction)
        if self._added or self.version > 1:
            await self._end(transaction, False)
        if self._wants_new_epoch:
            await self.init_producer()

    async def _end(self, transaction: Transaction, committed: bool) -> None:
        tracker, verb = self._tracker, "commit" if committed else "abort"
        fields = {**self._identity(), "committed": committed}
        self.log_event(f"{transaction.name}: {verb} requested")
        may_be_done, requested_at = False, self._now()
        deadline = self._deadline()
        while self._may_go_on(deadline):
            try:
                response = await self._request_coordinator(TRANSACTION, self.transactional_id, "end_txn", fields)
            except OSError:
                may_be_done = True
                await self._client.pause(0.05, 0.3)
                continue
            error = ErrorCode(response.error_code)
            if error == ErrorCode.NONE:
                if self.version > 1:
                    self._take(response.producer_id, response.producer_epoch, requested_at)
                self.log_event(f"{transaction.name} {verb} acked")
                tracker.ended(transaction, committed, self._workload.recorder.now())
                return
            if not error.retriable:
                if self._is_fresh:
                    self._check_replaced("end_txn", error)
                if not may_be_done:
                    tracker.will_abort(transaction)  # no other client may commit it
                self.log_event(f"{transaction.name} {verb} rejected: {error.name}")
                raise FencedError(f"{verb}: {error.name}")
            may_be_done = True
            if error != ErrorCode.CONCURRENT_TRANSACTIONS:
                self._coordinators.pop((TRANSACTION, self.transactional_id), None)
            await self._client.pause(0.02, 0.15)
        raise FencedError(f"{verb} got no final response")


def first_error(api: str, response: Message) -> ErrorCode:
    """The most severe error of a response: final errors before retriable ones."""
    if api == "add_partitions_to_txn":
        codes = [row.partition_error_code for topic in response.results_by_topic_v3_and_below
                 for row in topic.results_by_partition]  # fmt: skip
    elif api == "txn_offset_commit":
        codes = [row.error_code for topic in response.topics for row in topic.partitions]
    else:
        codes = [response.error_code]
    errors = [ErrorCode(code) for code in codes if code]
    # After one partition was rejected, the others are not attempted; that is no error of theirs.
    errors = [error for error in errors if error != ErrorCode.OPERATION_NOT_ATTEMPTED] or errors
    final = [error for error in errors if not error.retriable]
    return next(iter(final or errors), ErrorCode.NONE)
