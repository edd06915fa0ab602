"""`AsyncClient`: the client as coroutines and async iterators.

It does not use `confluent_kafka.aio`, whose producer refuses headers and buffers records for up to a second, and whose
consumer is the blocking one in a thread pool. Here `publish` needs no thread: one poller thread turns delivery reports
into futures, so thousands can be in flight. A stream has one thread that reads whole batches. Requests about topics run
in a small thread pool.
"""

import asyncio
import contextlib
import functools
import threading
from collections import deque
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, Generic, TypeVar

from confluent_kafka import KafkaException, Producer

from millstream.client.client import Client, Partitions
from millstream.client.errors import MillstreamError
from millstream.client.partitioners import Partitioner
from millstream.client.record import Decode, Headers, Key, Message, Published, Record, Value
from millstream.client.stream import RecordStream, Start
from millstream.client.topics import Topic

T = TypeVar("T")
V = TypeVar("V")
CHUNK = 5000
_QUEUE_FULL_SECONDS = 0.005


class AsyncClient:
    """A client for asyncio: `async with millstream.connect_async(...) as client`."""

    def __init__(
        self, bootstrap: str = "localhost:9092", *, settings: Mapping[str, Any] | None = None, timeout: float = 30.0
    ) -> None:
        self._make = functools.partial(Client, bootstrap, settings=settings, timeout=timeout)
        self._client: Client | None = None
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="millstream-client")
        self._starting: asyncio.Future[Producer] | None = None
        self._reports: _DeliveryReports | None = None
        self._streams: set[AsyncRecordStream[Any]] = set()

    async def __aenter__(self) -> "AsyncClient":
        try:
            self._client = await self._call(self._make)
        except BaseException:
            self._pool.shutdown(wait=False)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Waits for records in flight, then closes the connections."""
        for stream in list(self._streams):
            await stream.aclose()
        client, self._client = self._client, None
        if client is not None:
            await self._call(client.close)
            if self._reports is not None:
                await self._call(self._reports.stop)
        self._pool.shutdown(wait=False)

    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        replication: int | None = None,
        config: Mapping[str, Any] | None = None,
        exist_ok: bool = False,
    ) -> bool:
        """As `Client.create_topic`."""
        create = functools.partial(
            self._connected.create_topic, replication=replication, config=config, exist_ok=exist_ok
        )
        return await self._call(create, name, partitions)

    async def list_topics(self, *, internal: bool = False) -> list[str]:
        """As `Client.list_topics`."""
        return await self._call(functools.partial(self._connected.list_topics, internal=internal))

    async def describe_topic(self, name: str) -> Topic:
        """As `Client.describe_topic`."""
        return await self._call(self._connected.describe_topic, name)

    async def alter_topic(
        self, name: str, *, partitions: int | None = None, config: Mapping[str, Any] | None = None
    ) -> None:
        """As `Client.alter_topic`."""
        await self._call(functools.partial(self._connected.alter_topic, partitions=partitions, config=config), name)

    async def delete_topic(self, name: str, *, missing_ok: bool = False) -> bool:
        """As `Client.delete_topic`."""
        return await self._call(functools.partial(self._connected.delete_topic, missing_ok=missing_ok), name)

    async def delete_records(self, name: str, before: Mapping[int, int]) -> dict[int, int]:
        """As `Client.delete_records`."""
        return await self._call(self._connected.delete_records, name, before)

    async def publish(
        self,
        topic: str,
        value: Value,
        *,
        key: Key = None,
        headers: Headers = None,
        partition: int | None = None,
        timestamp: datetime | int | None = None,
        partitioner: Partitioner | None = None,
        expected_offset: int | None = None,
    ) -> Published:
        """As `Client.publish`. Concurrent calls share batches, except those with `expected_offset`."""
        if expected_offset is not None:
            send = functools.partial(
                self._connected.publish,
                key=key,
                headers=headers,
                partition=partition,
                timestamp=timestamp,
                expected_offset=expected_offset,
            )
            return await self._call(send, topic, value)
        publisher = self._connected.publisher
        if self._reports is None:
            # One future for all concurrent calls: it resumes them in their order.
            if self._starting is None:
                self._starting = asyncio.get_running_loop().run_in_executor(self._pool, publisher.single)
            producer = await asyncio.shield(self._starting)
            if self._reports is None:
                self._reports = _DeliveryReports(producer)
        message = Message(value, key, headers, partition, timestamp)
        if partitioner is not None:
            partition_count = publisher.known_partition_count(topic)
            if partition_count is None:
                partition_count = await self._call(publisher.partition_count, topic)
            message = publisher.placed(message, partitioner, partition_count)
        while True:
            try:
                report = self._reports.send(functools.partial(publisher.enqueue_at_once, topic=topic, message=message))
                break
            except BufferError:
                await asyncio.sleep(_QUEUE_FULL_SECONDS)
        error, delivered = await report
        if error is not None:  # the check whether a broker listens blocks
            raise await self._call(self._connected.connection.error, error, topic)
        return publisher.outcome(topic, None, delivered)

    async def publish_many(
        self,
        topic: str,
        items: Iterable[Value | tuple[Key, Value] | Message] | AsyncIterable[Value | tuple[Key, Value] | Message],
        *,
        partitioner: Partitioner | None = None,
    ) -> int:
        """As `Client.publish_many`. The items may also be an async iterable."""
        send = functools.partial(self._connected.publish_many, partitioner=partitioner)
        if not isinstance(items, AsyncIterable):
            return await self._call(send, topic, items)
        count = 0
        chunk: list[Value | tuple[Key, Value] | Message] = []
        async for item in items:
            chunk.append(item)
            if len(chunk) >= CHUNK:
                count += await self._call(send, topic, chunk)
                chunk = []
        return count + (await self._call(send, topic, chunk) if chunk else 0)

    def consume(
        self,
        topic: str,
        start: Start | Mapping[int, Start] = "earliest",
        *,
        partition: Partitions = None,
        follow: bool | None = None,
        timeout: float | None = None,
        limit: int | None = None,
        decode: Decode = None,
    ) -> "AsyncRecordStream[Any]":
        """As `Client.consume`: `async for record in client.consume(...)`."""
        open_stream: Callable[[], RecordStream[Any]] = functools.partial(
            self._connected.consume,
            topic,
            start,
            partition=partition,
            follow=follow,
            timeout=timeout,
            limit=limit,
            decode=decode,
        )
        stream: AsyncRecordStream[Any] = AsyncRecordStream(open_stream, self._streams.discard)
        self._streams.add(stream)
        return stream

    @property
    def _connected(self) -> Client:
        if self._client is None:
            raise MillstreamError("not connected: use `async with millstream.connect_async(...) as client`")
        return self._client

    async def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)


class AsyncRecordStream(Generic[V]):
    """The records of one topic as an async iterator. Close it with `async with` or `aclose()`."""

    def __init__(
        self, open_stream: Callable[[], RecordStream[V]], on_close: Callable[["AsyncRecordStream[V]"], None]
    ) -> None:
        self._open_stream = open_stream
        self._on_close = on_close
        self._stream: RecordStream[V] | None = None
        self._buffer: deque[Record[V]] = deque()
        # A separate thread: a stream that waits for records must not block other calls.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="millstream-stream")
        self._closed = False

    def __aiter__(self) -> "AsyncRecordStream[V]":
        return self

    async def __anext__(self) -> Record[V]:
        loop = asyncio.get_running_loop()
        while not self._buffer:
            if self._closed or (self._stream is not None and self._stream.finished):
                await self.aclose()
                raise StopAsyncIteration
            try:
                if self._stream is None:
                    self._stream = await loop.run_in_executor(self._thread, self._open_stream)
                self._buffer.extend(await loop.run_in_executor(self._thread, self._stream.next_batch))
            except Exception:
                await self.aclose()
                raise
        return self._buffer.popleft()

    async def __aenter__(self) -> "AsyncRecordStream[V]":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stops reading."""
        if self._closed:
            return
        self._closed = True
        self._on_close(self)
        if self._stream is not None:
            # In the thread of the stream, so it runs after a read that is in progress there.
            await asyncio.get_running_loop().run_in_executor(self._thread, self._stream.close)
        self._thread.shutdown(wait=False)


class _DeliveryReports:
    """Passes librdkafka's delivery reports from a poller thread to futures of the event loop."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._loop = asyncio.get_running_loop()
        self._arrived: deque[tuple[asyncio.Future[tuple[Any, Any]], Any, Any]] = deque()
        self._announced = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="millstream-deliveries", daemon=True)
        self._thread.start()

    def send(self, enqueue: Callable[..., None]) -> "asyncio.Future[tuple[Any, Any]]":
        """Enqueues a record. Its delivery resolves the returned future. Raises BufferError if the queue is full."""
        future: asyncio.Future[tuple[Any, Any]] = self._loop.create_future()
        enqueue(producer=self._producer, report=lambda error, message: self._report(future, error, message))
        return future

    def stop(self) -> None:
        """Stops the poller thread. Records in flight must have been flushed before."""
        self._stopping.set()
        self._thread.join()

    def _poll(self) -> None:
        while not self._stopping.is_set():
            # Raised if the producer cannot go on; each record has the error in its report.
            with contextlib.suppress(KafkaException):
                self._producer.poll(0.1)

    def _report(self, future: "asyncio.Future[tuple[Any, Any]]", error: Any, message: Any) -> None:
        self._arrived.append((future, error, message))
        # One wake-up of the loop for all reports of a batch, because each is a system call.
        if not self._announced:
            self._announced = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:
                self._arrived.clear()  # the loop is closed

    def _deliver(self) -> None:
        self._announced = False
        while self._arrived:
            future, error, message = self._arrived.popleft()
            if not future.done():
                future.set_result((error, message))
