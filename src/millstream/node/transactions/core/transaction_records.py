"""The records of `__transaction_state` to bytes and back, byte for byte as Kafka writes them (`transaction.schema`)."""

import struct
from functools import cache
from importlib.resources import files

from millstream.formats.model.identifiers import TopicName, TopicPartition
from millstream.formats.protocol.primitives import Cursor
from millstream.formats.protocol.schema import Schema, split_entries
from millstream.node.coordination.core.outcome import CoordinatorRecord
from millstream.node.transactions.core.transaction import Transaction, TransactionState

_INT16 = struct.Struct(">h")
_TYPE = 0
_KEY_VERSION = 0
_KNOWN_VERSIONS = (0, 1)


@cache
def _schemas() -> tuple[Schema, Schema]:
    entries = split_entries(files("millstream.node.transactions.core").joinpath("transaction.schema").read_text())
    return Schema(entries["key", "transaction_log"]), Schema(entries["value", "transaction_log"])


def encode(transaction: Transaction, transaction_version: int) -> CoordinatorRecord:
    """The record that says all of it; `transaction_version` is the cluster's and decides what there is room for."""
    version = 1 if transaction_version >= 1 else 0
    fields = {
        "producer_id": transaction.producer_id,
        "previous_producer_id": transaction.previous_producer_id,
        "next_producer_id": transaction.next_producer_id,
        "producer_epoch": transaction.producer_epoch,
        "next_producer_epoch": transaction.next_producer_epoch,
        "transaction_timeout_ms": transaction.timeout_ms,
        "transaction_status": transaction.state,
        "transaction_partitions": _rows(transaction),
        "transaction_last_update_timestamp_ms": transaction.updated_ms,
        "transaction_start_timestamp_ms": transaction.start_ms,
        "client_transaction_version": transaction.client_version,
    }
    value = _INT16.pack(version) + _schemas()[1].encode(fields, version)
    return CoordinatorRecord(_key(transaction.transactional_id), value)


def tombstone(transactional_id: str) -> CoordinatorRecord:
    return CoordinatorRecord(_key(transactional_id), None)


def _key(transactional_id: str) -> bytes:
    return _INT16.pack(_TYPE) + _schemas()[0].encode({"transactional_id": transactional_id}, _KEY_VERSION)


def _rows(transaction: Transaction) -> list[dict[str, object]] | None:
    if transaction.state == TransactionState.EMPTY:
        return None
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(transaction.partitions):
        topics.setdefault(topic, []).append(partition)
    return [{"topic": topic, "partition_ids": partitions} for topic, partitions in topics.items()]


def decode(key: bytes, value: bytes | None) -> tuple[str, Transaction | None] | None:
    """The transactional id and what is known of it (None: nothing any more); None for what is not known here."""
    (number,) = _INT16.unpack_from(key)
    if number != _TYPE:
        return None
    key_schema, value_schema = _schemas()
    transactional_id = key_schema.read(Cursor(key, _INT16.size, len(key)), _KEY_VERSION).transactional_id
    if value is None:
        return transactional_id, None
    (version,) = _INT16.unpack_from(value)
    if version not in _KNOWN_VERSIONS:
        return None
    row = value_schema.read(Cursor(value, _INT16.size, len(value)), version)
    return transactional_id, Transaction(
        transactional_id=transactional_id,
        producer_id=row.producer_id,
        producer_epoch=row.producer_epoch,
        previous_producer_id=row.previous_producer_id,
        next_producer_id=row.next_producer_id,
        next_producer_epoch=row.next_producer_epoch,
        timeout_ms=row.transaction_timeout_ms,
        state=TransactionState(row.transaction_status),
        partitions=frozenset(
            TopicPartition(TopicName(topic.topic), partition)
            for topic in row.transaction_partitions or ()
            for partition in topic.partition_ids
        ),
        start_ms=row.transaction_start_timestamp_ms,
        updated_ms=row.transaction_last_update_timestamp_ms,
        client_version=row.client_transaction_version,
    )
