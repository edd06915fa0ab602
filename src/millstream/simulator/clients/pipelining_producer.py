"""A producer with several batches in flight, which interprets responses as librdkafka does.

It sends up to five batches on one connection without waiting for responses. When the metadata names another leader, it
sends the next batches there, although the old leader still owes responses. When all responses have arrived or timed
out, it sends the unacknowledged batches again, in order. The success of a batch confirms all batches before it: a
leader that accepts the second without the first has lost the first. No sequence may be rejected, because the producer
would then start a new epoch and send again what may already be in the log. After a few batches it starts again with a
new producer id, so that first batches meet leaders in all states.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from millstream.common.lazy_dataclass import dataclass
from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.primitives import Cursor
from millstream.formats.protocol.schema import request_schema, response_schema
from millstream.formats.records.record import Record, build_batch
from millstream.node.server.channel import Channel
from millstream.simulator.clients.client import Leader, SimulatedClient
from millstream.simulator.clients.workload import SEQUENCE_REFUSALS, Producer, partition_name
from millstream.simulator.history.operations import Send

_MAX_IN_FLIGHT = 5
_GIVE_UP_SECONDS = 20.0
_GAP_SECONDS = 0.01
_LOOK_SECONDS = 0.25
"""Interval of metadata requests while it waits for responses."""
Outcome = tuple[ErrorCode, int]
"""An error code and the base offset of the batch."""


@dataclass(frozen=True, slots=True)
class _Batch:
    sequence: int
    data: bytes
    send: Send


class PipeliningProducer(Producer):
    """Writes to all partitions of the plain topics."""

    async def _write(self, topic: str, partition: int) -> None:
        workload, client = self._workload, self._client
        await client.pause(0.0, self._pause)
        while workload.writing:
            producer_id, epoch = await self._producer_id()
            await self._write_some(topic, partition, producer_id, epoch)
            await client.pause(0.2 * self._pause, 1.8 * self._pause)

    async def _write_some(self, topic: str, partition: int, producer_id: int, epoch: int) -> None:
        workload, client = self._workload, self._client
        count = client.randomness.randint(2, 2 * _MAX_IN_FLIGHT)
        sequence = 0
        in_flight: deque[_Batch] = deque()

        def add_one() -> _Batch | None:
            nonlocal sequence
            if sequence == count or len(in_flight) == _MAX_IN_FLIGHT:
                return None
            in_flight.append(self._batch(topic, partition, producer_id, epoch, sequence))
            workload.in_flight += 1
            sequence += 1
            return in_flight[-1]

        deadline = self._loop.time() + _GIVE_UP_SECONDS
        while (sequence < count or in_flight) and workload.writing and self._loop.time() < deadline:
            at_once = client.randomness.randint(1, _MAX_IN_FLIGHT)
            while len(in_flight) < at_once and add_one() is not None:
                pass
            outcomes = await self._send_all(topic, partition, in_flight, add_one)
            # A batch with a final error is reported as failed to the user, whatever happens to the next ones.
            refused = [at for at, (error, _) in enumerate(outcomes) if _is_for_good(error)]
            outcomes = outcomes[: refused[0]] if refused else outcomes
            for error, _ in outcomes:
                if error in SEQUENCE_REFUSALS:
                    workload.report(
                        "AcknowledgedIsDurable",
                        f"{partition_name(topic, partition)} rejected a sequence of producer {producer_id} with"
                        f" {error.name}, although all batches were sent in order",
                    )
                    refused.append(0)
            taken = [at for at, (error, _) in enumerate(outcomes) if error == ErrorCode.NONE]
            for error, offset in outcomes[: taken[-1] + 1] if taken else ():
                self._acknowledged(topic, partition, in_flight.popleft(), error, offset)
            if refused:
                break
            if not outcomes or len(taken) < len(outcomes):
                await self._refresh_early()
        workload.in_flight -= len(in_flight)
        workload.given_up += len(in_flight)

    async def _refresh_early(self) -> None:
        """Refreshes the metadata early, so it meets new leaders that do not know yet that they lead."""
        await self._client.pause(0.0, 0.04)
        try:
            await self._client.refresh()
        except OSError:
            pass

    def _batch(self, topic: str, partition: int, producer_id: int, epoch: int, sequence: int) -> _Batch:
        value = f"{self._name}/{self._written}"
        self._written += 1
        send = self._workload.recorder.send(f"{self._name}/{producer_id}", partition_name(topic, partition), value)
        now_ms = self._client.process.environment.clock.now_ms()
        data = build_batch(
            [Record(key=None, value=value.encode(), timestamp=now_ms)],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        return _Batch(sequence, bytes(data), send)

    def _acknowledged(self, topic: str, partition: int, batch: _Batch, error: ErrorCode, offset: int) -> None:
        workload = self._workload
        workload.in_flight -= 1
        if error != ErrorCode.NONE:
            workload.recorder.acked(batch.send, None)
            workload.log_event(self._name, f"{batch.send.value} counts as acked, because a later batch was")
            return
        workload.recorder.acked(batch.send, offset)
        workload.note_acked((topic, partition), offset)
        workload.log_event(self._name, f"acked {partition_name(topic, partition)} offset {offset} ({batch.send.value})")

    async def _send_all(
        self, topic: str, partition: int, batches: deque[_Batch], add_one: Callable[[], _Batch | None]
    ) -> list[Outcome]:
        """Sends batches. Returns the outcomes of those sent, all or the first ones. `add_one` adds another batch."""
        leader = self._client.leader(topic, partition)
        timeout_s = self._client.randomness.choice(self._workload.response_timeouts_s)
        flight = _InFlight(self._client, topic, partition, timeout_ms=int(timeout_s * 1000) - 1000)
        try:
            if leader is None or not await flight.connect(leader):
                return []
            for batch in batches:
                if not await flight.send(batch):
                    break
            may_go_on = flight.count == len(batches)
            deadline = self._loop.time() + timeout_s
            while not flight.is_over and self._loop.time() < deadline:
                await flight.wait(min(_LOOK_SECONDS, max(0.0, deadline - self._loop.time())))
                if flight.is_over or not may_go_on:
                    continue
                await self._refresh_early()
                now = self._client.leader(topic, partition)
                if now is None or now.node_id == flight.node_id or not await flight.connect(now):
                    continue
                while may_go_on and (following := add_one()) is not None:
                    may_go_on = await flight.send(following)
            return flight.outcomes()
        except OSError:
            return flight.outcomes()
        finally:
            flight.close()


class _InFlight:
    """Batches in flight, in order, each on the connection used when it was sent. A batch on a lost connection is not
    sent again here, because it would overtake earlier ones."""

    def __init__(self, client: SimulatedClient, topic: str, partition: int, *, timeout_ms: int) -> None:
        self._client = client
        self._topic = topic
        self._partition = partition
        self._timeout_ms = timeout_ms
        self._channels: list[Channel] = []
        self._responses: list[tuple[Channel, int, asyncio.Future[bytearray]]] = []
        self._leader: Leader | None = None
        self._version = 0

    @property
    def node_id(self) -> int | None:
        return self._leader.node_id if self._leader is not None else None

    @property
    def count(self) -> int:
        return len(self._responses)

    @property
    def is_over(self) -> bool:
        return all(response.done() for _, _, response in self._responses)

    async def connect(self, leader: Leader) -> bool:
        """Sends the next batches to this node. False if its address is not known, OSError if it is not reachable."""
        channel = self._client.new_channel(leader.node_id)
        if channel is None:
            return False
        self._channels.append(channel)
        self._version = await channel.best_version("produce", timeout_s=1.0)
        self._leader = leader
        return True

    async def send(self, batch: _Batch) -> bool:
        """False if the connection is lost."""
        assert self._leader is not None
        channel = self._channels[-1]
        rows = [{"index": self._partition, "records": batch.data}]
        fields = {
            "transactional_id": None,
            "acks": -1,
            "timeout_ms": self._timeout_ms,
            "topic_data": [{"name": self._topic, "topic_id": self._leader.topic_id, "partition_data": rows}],
        }
        body = bytearray()
        request_schema("produce").write(body, fields, self._version)
        response = channel.begin("produce", self._version, body)
        if response is None:
            return False
        self._responses.append((channel, self._version, response))
        await self._client.pause(0.0, _GAP_SECONDS)
        return True

    async def wait(self, seconds: float) -> None:
        await asyncio.wait([response for _, _, response in self._responses], timeout=seconds)

    def outcomes(self) -> list[Outcome]:
        """The outcomes so far. Later responses are ignored."""
        found = [_outcome(*each) for each in self._responses]
        for error, _ in found:
            self._client.look_at_error("produce", error)
        return found

    def close(self) -> None:
        for _, _, response in self._responses:
            response.cancel()
        for channel in self._channels:
            channel.close()


def _is_for_good(error: ErrorCode) -> bool:
    return error != ErrorCode.NONE and not error.retriable and error not in SEQUENCE_REFUSALS


def _outcome(channel: Channel, version: int, response: "asyncio.Future[bytearray]") -> Outcome:
    if not response.done() or response.cancelled() or response.exception() is not None:
        return ErrorCode.NETWORK_EXCEPTION, -1
    cursor = Cursor(response.result())
    cursor.position = channel.body_position("produce", version, response.result())
    row = response_schema("produce").read(cursor, version).responses[0].partition_responses[0]
    return ErrorCode(row.error_code), row.base_offset
