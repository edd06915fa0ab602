"""A consumer that reads all history again and again: most of it is only in the tier."""

from millstream.formats.model.errors import ErrorCode
from millstream.formats.records.record import read_batches
from millstream.simulator.clients.workload import Consumer, partition_name
from millstream.simulator.history.operations import Seen

_PASS_SECONDS = 4.0


class Historian(Consumer):
    """Begins each partition again from offset 0 after some seconds, as another reader of the history."""

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
