"""Event-sourcing clients: they append only where they expect the end of a partition (conditional append, KIP-27).

Two of them write to the same partition, beside other producers. An attempt whose response was lost is sent again until
its result is known. Invariant: no two writers succeed with the same expectation, and a record is where its writer
expected it. `Expectations` is shared by all writers.
"""

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.primitives import Cursor
from millstream.formats.protocol.produce import FIRST_WITH_TOPIC_ID, encode_conditional, end_in_response
from millstream.formats.protocol.schema import response_schema
from millstream.formats.records.record import Record, build_batch
from millstream.simulator.clients.client import SimulatedClient
from millstream.simulator.clients.workload import GIVE_UP_SECONDS, SEQUENCE_REFUSALS, Workload, partition_name
from millstream.simulator.machine import Process

INVARIANT = "OneWriterPerExpectation"
_TIMEOUT_SECONDS = 2.5
_VERSION = FIRST_WITH_TOPIC_ID


class Expectations:
    """The successes of all writers, by partition and expected offset."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._won: dict[tuple[str, int, int], str] = {}
        self.refused = 0

    @property
    def won(self) -> int:
        return len(self._won)

    def new_writer(self, process: Process, bootstrap: list[tuple[str, int]]) -> "ConditionalWriter":
        return ConditionalWriter(process, bootstrap, self._workload, self)

    def note(self, topic: str, partition: int, expected: int, base_offset: int, value: str) -> None:
        """A writer got the response that its record is written."""
        at = topic, partition, expected
        other = self._won.setdefault(at, value)
        if other != value and not self._workload.may_lose_records:
            self._workload.report(
                INVARIANT,
                f"{value} and {other} were both written with the expectation {expected} of {topic}-{partition}",
            )
        if base_offset != expected:
            self._workload.report(
                INVARIANT, f"{value} expected the end {expected} of {topic}-{partition}, and is at {base_offset}"
            )


class ConditionalWriter:
    def __init__(
        self, process: Process, bootstrap: list[tuple[str, int]], workload: Workload, expectations: Expectations
    ) -> None:
        self._workload = workload
        self._expectations = expectations
        self._name = process.machine.name
        self._client = SimulatedClient(process, bootstrap, self._name)
        self._client.topics = tuple(plan.name for plan in workload.plain_topics)
        self._loop = process.loop
        self._written = 0

    def start(self) -> None:
        plan = self._workload.plain_topics[-1]
        self._loop.create_task(self._write(plan.name, 0))

    def stop(self) -> None:
        pass

    async def _write(self, topic: str, partition: int) -> None:
        workload, client = self._workload, self._client
        expected = 0
        while workload.writing:
            producer_id, epoch = await self._producer_id()
            sequence = 0
            while workload.writing:
                workload.in_flight += 1
                result = await self._write_record(topic, partition, producer_id, epoch, sequence, expected)
                workload.in_flight -= 1
                if result is None:
                    break  # unknown: the sequence must not be used for another record
                end, was_written = result
                sequence += was_written
                # Sometimes it acts on what it knew before, as a client does that was slow to decide.
                expected = end if client.randomness.random() < 0.8 else max(0, end - 1)
                await client.pause(0.1, 0.8)

    async def _producer_id(self) -> tuple[int, int]:
        while True:
            try:
                fields = {"transactional_id": None, "transaction_timeout_ms": 0}
                response = await self._client.request_any("init_producer_id", fields)
                if response.error_code == ErrorCode.NONE:
                    return response.producer_id, response.producer_epoch
            except OSError:
                pass
            await self._client.pause(0.05, 0.3)

    async def _write_record(
        self, topic: str, partition: int, producer_id: int, epoch: int, sequence: int, expected: int
    ) -> tuple[int, bool] | None:
        """The end of the partition after the attempt, and whether the record was written; None if this is unknown."""
        workload, client, recorder = self._workload, self._client, self._workload.recorder
        name = partition_name(topic, partition)
        value = f"{self._name}/{self._written}"
        self._written += 1
        send = recorder.send(f"{self._name}/{producer_id}", name, value)
        now_ms = client.process.environment.clock.now_ms()
        batch = build_batch(
            [Record(key=None, value=value.encode(), timestamp=now_ms)],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        deadline = self._loop.time() + GIVE_UP_SECONDS
        newest_epoch, is_in_doubt = -1, False
        while self._loop.time() < deadline and workload.writing:
            leader = client.leader(topic, partition)
            if leader is None or leader.epoch < newest_epoch:
                await client.recover()
                continue
            newest_epoch = leader.epoch
            error, offset, end = await self._send(leader.node_id, leader.topic_id.bytes, partition, batch, expected)
            if error == ErrorCode.NONE and end is not None:
                recorder.acked(send, offset)
                workload.note_acked((topic, partition), offset)
                self._expectations.note(topic, partition, expected, offset, value)
                workload.log_event(self._name, f"acked {name} offset {offset} ({value}) expected {expected}")
                return end, True
            if error == ErrorCode.OFFSET_OUT_OF_RANGE and end is not None and (end > expected or not is_in_doubt):
                recorder.failed(send)
                self._expectations.refused += 1
                return end, False
            if error in SEQUENCE_REFUSALS:
                if not workload.may_lose_records:
                    workload.report("AcknowledgedIsDurable", f"{name} rejected sequence {sequence} with {error.name}")
                return None
            # Another attempt may still be on its way, and is written when the partition has grown to the expected end.
            is_in_doubt = is_in_doubt or error != ErrorCode.OFFSET_OUT_OF_RANGE
            await client.recover()
        workload.given_up += 1
        return None

    async def _send(
        self, node_id: int, topic_id: bytes, partition: int, batch: bytearray, expected: int
    ) -> tuple[ErrorCode, int, int | None]:
        body = encode_conditional(topic_id, partition, batch, expected, 1500, _VERSION)
        try:
            frame, position = await self._client.exchange(
                node_id, "produce", _VERSION, body, timeout_s=_TIMEOUT_SECONDS
            )
        except OSError:
            return ErrorCode.NETWORK_EXCEPTION, -1, None
        response = response_schema("produce").read(Cursor(frame, position), _VERSION)
        row = response.responses[0].partition_responses[0]
        return ErrorCode(row.error_code), row.base_offset, end_in_response(frame, position, _VERSION)
