"""librdkafka at C speed: the library inside the confluent-kafka wheel, driven through ctypes.

confluent-kafka's per-record Python API tops out long before a broker does, so it would measure itself. Here one call
hands librdkafka thousands of records (`rd_kafka_produce_batch`), and the consumer's callback is one of librdkafka's
own C functions, so no Python runs per record. All client settings are librdkafka's defaults unless a load says
otherwise.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.metadata
import random
import time
from collections.abc import Mapping
from functools import cache

_PRODUCER, _CONSUMER = 0, 1
_PARTITION_UNASSIGNED = -1
_OFFSET_BEGINNING = -2
_FLAG_BLOCK = 4  # wait for room in the producer's queue; payloads are neither copied nor freed
_RECORDS_PER_CALL = 5_000


class _Message(ctypes.Structure):
    _fields_ = (
        ("err", ctypes.c_int),
        ("topic", ctypes.c_void_p),
        ("partition", ctypes.c_int32),
        ("payload", ctypes.c_void_p),
        ("length", ctypes.c_size_t),
        ("key", ctypes.c_void_p),
        ("key_length", ctypes.c_size_t),
        ("offset", ctypes.c_int64),
        ("private", ctypes.c_void_p),
    )


class LibrdkafkaError(RuntimeError):
    """librdkafka refused a setting, or records were not acknowledged or not readable in time."""


def _library_path() -> str:
    for path in importlib.metadata.files("confluent-kafka") or ():
        if path.name.startswith("librdkafka"):
            return str(path.locate())
    installed = ctypes.util.find_library("rdkafka")
    if installed is None:
        raise LibrdkafkaError("librdkafka was found neither in the confluent-kafka wheel nor on the system")
    return installed


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(_library_path())
    pointer, text, integer, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_size_t
    signatures: dict[str, tuple[object, list[object]]] = {
        "rd_kafka_conf_new": (pointer, []),
        "rd_kafka_conf_set": (integer, [pointer, text, text, text, size]),
        "rd_kafka_new": (pointer, [integer, pointer, text, size]),
        "rd_kafka_destroy": (None, [pointer]),
        "rd_kafka_topic_new": (pointer, [pointer, text, pointer]),
        "rd_kafka_topic_destroy": (None, [pointer]),
        "rd_kafka_produce_batch": (integer, [pointer, ctypes.c_int32, integer, pointer, integer]),
        "rd_kafka_flush": (integer, [pointer, integer]),
        "rd_kafka_queue_new": (pointer, [pointer]),
        "rd_kafka_queue_destroy": (None, [pointer]),
        "rd_kafka_consume_start_queue": (integer, [pointer, ctypes.c_int32, ctypes.c_int64, pointer]),
        "rd_kafka_consume_stop": (integer, [pointer, ctypes.c_int32]),
        "rd_kafka_consume_callback_queue": (integer, [pointer, integer, pointer, pointer]),
        "rd_kafka_init_transactions": (pointer, [pointer, integer]),
        "rd_kafka_begin_transaction": (pointer, [pointer]),
        "rd_kafka_commit_transaction": (pointer, [pointer, integer]),
        "rd_kafka_abort_transaction": (pointer, [pointer, integer]),
        "rd_kafka_error_string": (text, [pointer]),
        "rd_kafka_error_destroy": (None, [pointer]),
        "rd_kafka_query_watermark_offsets": (integer, [pointer, text, ctypes.c_int32, pointer, pointer, integer]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class _Handle:
    """One librdkafka instance and one topic of it."""

    def __init__(self, kind: int, topic: str, settings: Mapping[str, str]) -> None:
        self.library = _library()
        conf = self.library.rd_kafka_conf_new()
        problem = ctypes.create_string_buffer(512)
        for name, value in {"log_level": "3", **settings}.items():  # errors only: failures are raised here
            if self.library.rd_kafka_conf_set(conf, name.encode(), value.encode(), problem, 512) != 0:
                raise LibrdkafkaError(problem.value.decode())
        self.client = self.library.rd_kafka_new(kind, conf, problem, 512)
        if not self.client:
            raise LibrdkafkaError(problem.value.decode())
        self.topic_name = topic
        self.topic = self.library.rd_kafka_topic_new(self.client, topic.encode(), None)

    def close(self) -> None:
        self.library.rd_kafka_topic_destroy(self.topic)
        self.library.rd_kafka_destroy(self.client)

    def end_offset(self, partition: int) -> int:
        low, high = ctypes.c_int64(), ctypes.c_int64()
        name = self.topic_name.encode()
        arguments = (self.client, name, partition, ctypes.byref(low), ctypes.byref(high), 10_000)
        if (code := self.library.rd_kafka_query_watermark_offsets(*arguments)) != 0:
            raise LibrdkafkaError(f"end offset of {self.topic_name}-{partition}: librdkafka error {code}")
        return high.value


def end_offsets(bootstrap: str, topic: str, partitions: int) -> list[int]:
    handle = _Handle(_CONSUMER, topic, {"bootstrap.servers": bootstrap})
    try:
        return [handle.end_offset(partition) for partition in range(partitions)]
    finally:
        handle.close()


class Producer:
    """Keeps librdkafka's queue full. `send` returns when every record is acknowledged."""

    def __init__(self, bootstrap: str, topic: str, *, acks: str, settings: Mapping[str, str] | None = None) -> None:
        self._handle = _Handle(_PRODUCER, topic, {"bootstrap.servers": bootstrap, "acks": acks, **(settings or {})})

    def send(self, count: int, size_bytes: int, timeout_s: float = 120.0, *, keys: int = 0) -> float:
        """Produce `count` records of `size_bytes` to all partitions; returns the seconds it took.

        With `keys`, each has a key out of so many, drawn at random but always the same way.
        """
        handle, library = self._handle, self._handle.library
        rng, key_bytes = random.Random(1), (ctypes.c_uint64 * keys)(*range(keys))
        payload = ctypes.create_string_buffer(bytes(65 + i % 26 for i in range(size_bytes)), size_bytes)
        messages = (_Message * min(count, _RECORDS_PER_CALL))()
        for message in messages:
            message.payload, message.length = ctypes.addressof(payload), size_bytes
        started = time.perf_counter()
        left = count
        while left > 0:
            if keys:
                first = ctypes.addressof(key_bytes)
                for message in messages:
                    message.key, message.key_length = first + 8 * rng.randrange(keys), 8
            left -= library.rd_kafka_produce_batch(
                handle.topic, _PARTITION_UNASSIGNED, _FLAG_BLOCK, messages, min(left, len(messages))
            )
        if library.rd_kafka_flush(handle.client, int(timeout_s * 1000)) != 0:
            raise LibrdkafkaError(f"not all of {count} records were acknowledged within {timeout_s:.0f} s")
        return time.perf_counter() - started

    def close(self) -> None:
        self._handle.close()


class TransactionalProducer:
    """Sends records in transactions of a given length, one after the other, with librdkafka's queue kept full."""

    _TIMEOUT_MS = 60_000

    def __init__(
        self, bootstrap: str, topic: str, transactional_id: str, *, settings: Mapping[str, str] | None = None
    ) -> None:
        own = {"bootstrap.servers": bootstrap, "transactional.id": transactional_id}
        self._handle = _Handle(_PRODUCER, topic, {**own, **(settings or {})})
        self._call("init_transactions", self._TIMEOUT_MS)

    def send(self, count: int, size_bytes: int, transaction_s: float, *, per_call: int = 500) -> float:
        """Produce `count` records to all partitions; the seconds until the last transaction was committed."""
        started = time.perf_counter()
        self._send(count, size_bytes, transaction_s, per_call, abort_every=0)
        return time.perf_counter() - started

    def send_aborting(self, count: int, size_bytes: int, transaction_s: float, *, every: int) -> int:
        """The same, but each so-manyth transaction is aborted when its records are written; how many these were."""
        return self._send(count, size_bytes, transaction_s, 500, abort_every=every)

    def _send(self, count: int, size_bytes: int, transaction_s: float, per_call: int, abort_every: int) -> int:
        handle, library = self._handle, self._handle.library
        payload = ctypes.create_string_buffer(bytes(65 + i % 26 for i in range(size_bytes)), size_bytes)
        messages = (_Message * min(count, per_call))()
        for message in messages:
            message.payload, message.length = ctypes.addressof(payload), size_bytes
        left, number, aborted = count, 0, 0
        while left > 0:
            number += 1
            self._call("begin_transaction")
            end, before = time.perf_counter() + transaction_s, left
            while True:
                left -= library.rd_kafka_produce_batch(
                    handle.topic, _PARTITION_UNASSIGNED, _FLAG_BLOCK, messages, min(left, len(messages))
                )
                if left == 0 or time.perf_counter() >= end:
                    break
            if abort_every and number % abort_every == 0:
                if library.rd_kafka_flush(handle.client, self._TIMEOUT_MS) != 0:
                    raise LibrdkafkaError("the records of a transaction were not acknowledged in time")
                self._call("abort_transaction", self._TIMEOUT_MS)
                aborted += before - left
            else:
                self._call("commit_transaction", self._TIMEOUT_MS)
        return aborted

    def _call(self, name: str, *arguments: int) -> None:
        library = self._handle.library
        error = getattr(library, f"rd_kafka_{name}")(self._handle.client, *arguments)
        if error:
            text = library.rd_kafka_error_string(error).decode()
            library.rd_kafka_error_destroy(error)
            raise LibrdkafkaError(f"{name}: {text}")

    def close(self) -> None:
        self._handle.close()


def consume_all(
    bootstrap: str,
    topic: str,
    partitions: int,
    timeout_s: float = 120.0,
    *,
    expected: int | None = None,
    settings: Mapping[str, str] | None = None,
) -> tuple[int, float]:
    """Read the topic from its beginning to its present end without a group; returns records and seconds.

    `expected` is how many records there are to see, where that is not what the offsets say.
    """
    handle = _Handle(_CONSUMER, topic, {"bootstrap.servers": bootstrap, **(settings or {})})
    library = handle.library
    # Asking for the end offsets also opens the connection, so that the clock sees fetching only.
    offsets = sum(handle.end_offset(partition) for partition in range(partitions))
    expected = offsets if expected is None else expected
    queue = library.rd_kafka_queue_new(handle.client)
    # A C function with the callback's signature that does almost nothing: it reads the record's timestamp type.
    no_python = ctypes.cast(library.rd_kafka_message_timestamp, ctypes.c_void_p)
    timestamp_type = ctypes.c_int()
    started = time.perf_counter()
    try:
        for partition in range(partitions):
            if library.rd_kafka_consume_start_queue(handle.topic, partition, _OFFSET_BEGINNING, queue) != 0:
                raise LibrdkafkaError(f"cannot read {topic}-{partition}")
        read = 0
        while read < expected:
            served = library.rd_kafka_consume_callback_queue(queue, 100, no_python, ctypes.byref(timestamp_type))
            read += max(served, 0)
            if time.perf_counter() - started > timeout_s:
                raise LibrdkafkaError(f"read {read} of {expected} records of {topic} within {timeout_s:.0f} s")
        seconds = time.perf_counter() - started
        for partition in range(partitions):
            library.rd_kafka_consume_stop(handle.topic, partition)
        return read, seconds
    finally:
        library.rd_kafka_queue_destroy(queue)
        handle.close()
