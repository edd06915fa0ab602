"""Consumers of the workload: they read all partitions from the beginning, once or again and again."""

from millstream.formats.model.errors import ErrorCode
from millstream.formats.records.record import read_batches
from millstream.simulator.clients.client import SimulatedClient
from millstream.simulator.clients.workload import Workload, partition_name
from millstream.simulator.history.operations import Seen
from millstream.simulator.machine import Process

_PASS_SECONDS = 4.0


class Consumer:
    """Reads all partitions from the beginning."""

    def __init__(self, process: Process, bootstrap: list[tuple[str, int]], workload: Workload) -> None:
        self._workload = workload
        self._name = process.machine.name
        self._client = SimulatedClient(process, bootstrap, self._name)
        self._client.topics = tuple(plan.name for plan in workload.plain_topics)
        self._client.compares_epochs = not workload.has_stale_clients
        self._loop = process.loop
        self.positions: dict[tuple[str, int], int] = {}

    def start(self) -> None:
        for plan in self._workload.plain_topics:
            for partition in range(plan.partitions):
                self._loop.create_task(self._read(plan.name, partition))

    def stop(self) -> None:
        pass

    async def _read(self, topic: str, partition: int) -> None:
        workload, client, recorder = self._workload, self._client, self._workload.recorder
        name = partition_name(topic, partition)
        reader = f"{self._name}/{name}"
        position = self.positions[topic, partition] = 0
        recorder.assigned(reader, {name: 0})
        while workload.reading:
            invoked = recorder.now()
            error, row = await client.fetch(topic, partition, position)
            if error == ErrorCode.OFFSET_OUT_OF_RANGE:
                workload.report(
                    "AcknowledgedIsDurable", f"offset {position} of {name} is out of range, but it was read up to there"
                )
            if error != ErrorCode.NONE or row is None:
                await client.recover()
                continue
            seen = []
            for _, records in read_batches(bytes(row.records or b"")):
                for record in records:
                    if record.offset >= position:
                        seen.append(Seen(name, record.offset, (record.value or b"").decode()))
            if seen:
                position = self.positions[topic, partition] = seen[-1].offset + 1
                recorder.poll(reader, invoked, seen)
            else:
                await client.pause(0.05, 0.1)
            await client.refresh_if_stale()


class Historian(Consumer):
    """Begins each partition again from offset 0 after some seconds, as another reader of the history. Most of it
    is only in the tier."""

    async def _read(self, topic: str, partition: int) -> None:
        workload, client, recorder = self._workload, self._client, self._workload.recorder
        name = partition_name(topic, partition)
        number, began, position = 0, -_PASS_SECONDS, 0
        reader = ""
        while workload.reading:
            invoked = recorder.now()
            if invoked - began >= _PASS_SECONDS:
                number, began, position = number + 1, invoked, 0
                reader = f"{self._name}{number}/{name}"
                recorder.assigned(reader, {name: 0})
            error, row = await client.fetch(topic, partition, position)
            if error == ErrorCode.OFFSET_OUT_OF_RANGE:
                workload.report("AcknowledgedIsDurable", f"offset {position} of {name} is out of range in the tier")
            if error != ErrorCode.NONE or row is None:
                await client.recover()
                continue
            seen = [
                Seen(name, record.offset, (record.value or b"").decode())
                for _, records in read_batches(bytes(row.records or b""))
                for record in records
                if record.offset >= position
            ]
            if seen:
                position = seen[-1].offset + 1
                recorder.poll(reader, invoked, seen)
            else:
                await client.pause(0.05, 0.1)
            await client.refresh_if_stale()
