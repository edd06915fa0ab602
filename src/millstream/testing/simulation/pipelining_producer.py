"""A producer that has several batches under way at once, and believes what librdkafka believes.

Up to five batches go out on one connection, one after the other, as if answers took a while. When all have come back,
what was not acknowledged is sent again, in order. The success of a batch stands for all before it: a leader that takes
the second and has refused the first has lost that. Every few batches it begins anew under another producer id, so that
its first batch meets leaders of all kinds.
"""

import asyncio
from collections import deque
from dataclasses import dataclass

from millstream.model.errors import ErrorCode
from millstream.net.channel import Channel
from millstream.protocol.messages import request_schema, response_schema
from millstream.protocol.primitives import Cursor
from millstream.records.record import Record, build_batch
from millstream.testing.history.operations import Send
from millstream.testing.simulation.client import Leader
from millstream.testing.simulation.workload import GIVE_UP_SECONDS, SEQUENCE_REFUSALS, Producer, partition_name

_MOST_UNDER_WAY = 5
_ANSWER_SECONDS = 2.5
_GAP_SECONDS = 0.01
Outcome = tuple[ErrorCode, int]
"""An error, or where the batch is."""


@dataclass(frozen=True, slots=True)
class _Batch:
    sequence: int
    data: bytes
    send: Send


class PipeliningProducer(Producer):
    """A program: writes to every partition of the plan."""

    async def _write(self, topic: str, partition: int) -> None:
        workload, client = self._workload, self._client
        await client.rest(0.0, self._pause)
        while workload.writing:
            producer_id, epoch = await self._producer_id()
            await self._write_some(topic, partition, producer_id, epoch)
            await client.rest(0.2 * self._pause, 1.8 * self._pause)

    async def _write_some(self, topic: str, partition: int, producer_id: int, epoch: int) -> None:
        workload, client = self._workload, self._client
        count = client.randomness.randint(2, 2 * _MOST_UNDER_WAY)
        sequence = 0
        under_way: deque[_Batch] = deque()
        deadline = self._loop.time() + GIVE_UP_SECONDS
        while (sequence < count or under_way) and workload.writing and self._loop.time() < deadline:
            while sequence < count and len(under_way) < _MOST_UNDER_WAY:
                under_way.append(self._batch(topic, partition, producer_id, epoch, sequence))
                workload.under_way += 1
                sequence += 1
            outcomes = await self._send_all(topic, partition, under_way)
            # What is refused for good is told its user as failed, whatever comes behind it.
            refused = [at for at, (error, _) in enumerate(outcomes) if _is_for_good(error)]
            outcomes = outcomes[: refused[0]] if refused else outcomes
            taken = [at for at, (error, _) in enumerate(outcomes) if error == ErrorCode.NONE]
            for error, offset in outcomes[: taken[-1] + 1] if taken else ():
                self._acknowledged(topic, partition, under_way.popleft(), error, offset)
            if under_way and len(outcomes) > len(taken):
                first_failure = next(error for error, _ in outcomes if error != ErrorCode.NONE)
                if first_failure in SEQUENCE_REFUSALS:
                    workload.report(
                        "AckedIsKept",
                        f"{partition_name(topic, partition)} refused a sequence of producer {producer_id} with"
                        f" {first_failure.name} although everything before it was acknowledged",
                    )
                    break
            if refused:
                break
            if not outcomes or len(taken) < len(outcomes):
                await self._look_around()
        workload.under_way -= len(under_way)
        workload.given_up += len(under_way)

    async def _look_around(self) -> None:
        """Impatiently: so it finds new leaders that do not know yet that they are."""
        await self._client.rest(0.0, 0.04)
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
        workload.under_way -= 1
        if error != ErrorCode.NONE:
            workload.recorder.acked(batch.send, None)
            workload.tell(self._name, f"{batch.send.value} counts as acked: a later one was")
            return
        workload.recorder.acked(batch.send, offset)
        workload.note_acked((topic, partition), offset)
        workload.tell(self._name, f"acked {partition_name(topic, partition)} offset {offset} ({batch.send.value})")

    async def _send_all(self, topic: str, partition: int, batches: deque[_Batch]) -> list[Outcome]:
        """The outcomes of those that were sent: the first few, or all."""
        leader = self._client.leader(topic, partition)
        if leader is None:
            return []
        channel = self._client.new_channel(leader.node_id)
        if channel is None:
            return []
        try:
            version = await channel.best_version("produce", timeout_s=1.0)
            answers = await self._send_in_order(channel, version, leader, topic, partition, batches)
            _, late = await asyncio.wait(answers, timeout=_ANSWER_SECONDS)
            for each in late:
                each.cancel()
            return [_outcome(channel, version, each) for each in answers]
        except OSError:
            return []
        finally:
            channel.close()

    async def _send_in_order(
        self,
        channel: Channel,
        version: int,
        leader: Leader,
        topic: str,
        partition: int,
        batches: deque[_Batch],
    ) -> "list[asyncio.Future[bytearray]]":
        answers: list[asyncio.Future[bytearray]] = []
        for batch in batches:
            rows = [{"index": partition, "records": batch.data}]
            body = bytearray()
            fields = {
                "transactional_id": None,
                "acks": -1,
                "timeout_ms": 1500,
                "topic_data": [{"name": topic, "topic_id": leader.topic_id, "partition_data": rows}],
            }
            request_schema("produce").write(body, fields, version)
            # On this connection or not at all: behind one that was lost it would be the first.
            answer = channel.begin("produce", version, body)
            if answer is None:
                break
            answers.append(answer)
            await self._client.rest(0.0, _GAP_SECONDS)
        if not answers:
            raise ConnectionError("the connection was lost before anything was sent")
        return answers


def _is_for_good(error: ErrorCode) -> bool:
    return error != ErrorCode.NONE and not error.retriable and error not in SEQUENCE_REFUSALS


def _outcome(channel: Channel, version: int, answer: "asyncio.Future[bytearray]") -> Outcome:
    if not answer.done() or answer.cancelled() or answer.exception() is not None:
        return ErrorCode.NETWORK_EXCEPTION, -1
    cursor = Cursor(answer.result())
    cursor.position = channel.body_position("produce", version, answer.result())
    row = response_schema("produce").read(cursor, version).responses[0].partition_responses[0]
    return ErrorCode(row.error_code), row.base_offset
