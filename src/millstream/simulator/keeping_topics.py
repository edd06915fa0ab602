"""Clients of ordinary topics that hold more than records: schemas in `_schemas`, and a log that is cut at its start."""

from collections.abc import Iterable

from millstream.formats.model.errors import ErrorCode
from millstream.formats.records.record import Record, build_batch, read_batches
from millstream.simulator.keeping_client import KeepingClient, Progress
from millstream.simulator.machine import Process
from millstream.simulator.transaction_book import At
from millstream.simulator.workload import TopicPlan, Workload

SCHEMAS = TopicPlan(
    "_schemas",
    1,
    1,
    {"cleanup.policy": "compact", "segment.ms": "700", "min.cleanable.dirty.ratio": "0.1"},
    plain=False,
)
SHORT = TopicPlan("short", 1, 1, {"segment.ms": "900"}, plain=False)
_SUBJECTS = 3
_EARLIEST, _LATEST = -2, -1


def _batch(client: KeepingClient, rows: Iterable[tuple[bytes | None, bytes]]) -> bytes:
    now_ms = client.client.process.environment.clock.now_ms()
    return bytes(build_batch([Record(key=key, value=value, timestamp=now_ms) for key, value in rows]))


class Registrar(KeepingClient):
    """Writes versions of subjects as a registry does, and reads them all: a version that was told of stays."""

    _AT: At = (SCHEMAS.name, 0)

    def __init__(
        self, process: Process, bootstrap: list[tuple[str, int]], workload: Workload, progress: Progress
    ) -> None:
        super().__init__(process, bootstrap, workload, progress)
        self._version = 0
        self._kept: dict[bytes, int] = {}
        self._open: dict[bytes, set[int]] = {}

    async def step(self) -> None:
        if self.randomness.random() < 0.3:
            await self._read()
        else:
            await self._write()

    async def _write(self) -> None:
        self._version += 1
        version, subject = self._version, f"subject-{self.randomness.randrange(_SUBJECTS)}".encode()
        is_open = self._open.setdefault(subject, set())
        is_open.add(version)
        offset = await self.produce(self._AT, _batch(self, [(subject, str(version).encode())]))
        is_open.discard(version)
        self._kept[subject] = max(self._kept.get(subject, 0), version)
        self.workload.note_acked(self._AT, offset)
        self.acked(f"version {version} of {subject.decode()}")

    async def _read(self) -> None:
        expected = dict(self._kept)
        found: dict[bytes, int] = {}
        # As a registry does: a broker that has just started says when it knows the end, and not before.
        position, end = 0, await self.list_offset(self._AT, _LATEST)
        while position < end:
            error, row = await self.client.fetch(*self._AT, position, wait_ms=20)
            if error != ErrorCode.NONE or row is None:
                raise ConnectionError(error.name)
            for header, records in read_batches(bytes(row.records or b"")):
                position = max(position, header.last_offset + 1)
                found |= {record.key or b"": int(record.value or b"0") for record in records}
        for subject, version in expected.items():
            seen = found.get(subject, 0)
            if seen < version and seen not in self._open[subject]:
                self.taken_back(f"{subject.decode()} has version {seen}, and {version} was acknowledged")
        for subject, version in found.items():
            self._kept[subject] = max(self._kept.get(subject, 0), version)


class Shortener(KeepingClient):
    """Writes, and deletes what it wrote: records that were deleted stay so."""

    _AT: At = (SHORT.name, 0)

    def __init__(
        self, process: Process, bootstrap: list[tuple[str, int]], workload: Workload, progress: Progress
    ) -> None:
        super().__init__(process, bootstrap, workload, progress)
        self._end = 0
        self._low = 0

    async def step(self) -> None:
        chance = self.randomness.random()
        if chance < 0.5 or self._end == 0:
            offset = await self.produce(self._AT, _batch(self, [(None, b"soon deleted")]))
            self._end = max(self._end, offset + 1)
            self.workload.note_acked(self._AT, offset)
        elif chance < 0.75:
            await self._delete()
        else:
            await self._look()

    async def _delete(self) -> None:
        topic, index = self._AT
        offset = self.randomness.randint(self._low, max(self._low, self._end))
        fields = {
            "topics": [{"name": topic, "partitions": [{"partition_index": index, "offset": offset}]}],
            "timeout_ms": 1500,
        }
        response = await self.client.ask(self.leader(self._AT).node_id, "delete_records", fields)
        row = response.topics[0].partitions[0]
        if self.certain("delete_records", row.error_code) == ErrorCode.NONE:
            self._low = max(self._low, row.low_watermark)
            self.acked(f"all before offset {row.low_watermark} is deleted")

    async def _look(self) -> None:
        expected = self._low
        found = await self.list_offset(self._AT, _EARLIEST)
        if found < expected:
            self.taken_back(f"{SHORT.name} begins at {found}, and all before {expected} was deleted")
