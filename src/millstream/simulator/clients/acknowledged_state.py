"""Clients that check that acknowledged state is not lost: committed offsets, schemas in `_schemas`, deleted records.

`CheckingClient` is the base class, also of the group members in `group_members`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.formats.records.record import Record, build_batch, read_batches
from millstream.simulator.clients.client import GROUP, Leader, SimulatedClient
from millstream.simulator.clients.transaction_tracker import At
from millstream.simulator.clients.transactions import fetch_offset
from millstream.simulator.clients.workload import TopicPlan, Workload
from millstream.simulator.machine import Process

TRY_AGAIN = frozenset(
    (
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
    )
)
"""Errors that leave the outcome unknown or are retriable."""


class Progress:
    """The time of the last acknowledgement of each client."""

    def __init__(self) -> None:
        self.acked_at: dict[str, float] = {}
        self.acked: dict[str, int] = {}

    def note(self, name: str, at: float) -> None:
        self.acked_at[name] = at
        self.acked[name] = self.acked.get(name, 0) + 1

    def idle(self, names: Iterable[str], since: float) -> list[str]:
        return [name for name in names if self.acked_at.get(name, 0.0) <= since]


class CheckingClient(ABC):
    """A client that checks that nothing acknowledged is lost, in one loop that survives all errors.

    What a client has read also counts as acknowledged: it may act on an offset or a schema it knows.
    """

    def __init__(
        self, process: Process, bootstrap: list[tuple[str, int]], workload: Workload, progress: Progress
    ) -> None:
        self.workload = workload
        self.name = process.machine.name
        self.client = SimulatedClient(process, bootstrap, self.name)
        self.client.topics = tuple(plan.name for plan in workload.topics)
        self.randomness = self.client.randomness
        self._progress = progress
        self._coordinator: int | None = None
        self.is_stopped = False

    def start(self) -> None:
        self.client.loop.create_task(self._run())

    def stop(self) -> None:
        self.is_stopped = True

    async def _run(self) -> None:
        while self.workload.writing and not self.is_stopped:
            try:
                await self.step()
            except OSError:
                self._coordinator = None
                await self.client.recover()
            await self.client.pause(0.02, 0.3)

    @abstractmethod
    async def step(self) -> None:
        """Does one operation. OSError if the outcome is not known."""

    def acked(self, what: str) -> None:
        self._progress.note(self.name, self.workload.recorder.now())
        self.workload.log_event(self.name, f"acked: {what}")

    def report_loss(self, what: str) -> None:
        self.workload.report("AcknowledgedIsDurable", f"{self.name}: {what}")

    async def request_coordinator(
        self,
        group: str,
        api: str,
        fields: Mapping[str, Any],
        code_of: Callable[[Message], int] = lambda response: int(response.error_code),
    ) -> tuple[ErrorCode, Message]:
        if self._coordinator is None:
            self._coordinator = await self.client.find_coordinator(GROUP, group)
        response = await self.client.request(self._coordinator, api, fields)
        return self.certain(api, code_of(response)), response

    def leader(self, at: At) -> Leader:
        found = self.client.leader(*at)
        if found is None:
            raise ConnectionError(f"the leader of {at[0]}-{at[1]} is not known")
        return found

    @staticmethod
    def certain(api: str, code: int) -> ErrorCode:
        """The error code of a final response. OSError for a retriable one."""
        error = ErrorCode(code)
        if error in TRY_AGAIN:
            raise ConnectionError(f"{api}: {error.name}")
        return error

    async def list_offset(self, at: At, timestamp: int) -> int:
        topic, index = at
        row = {"partition_index": index, "current_leader_epoch": -1, "timestamp": timestamp}
        fields = {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [{"name": topic, "partitions": [row]}],
            "timeout_ms": 1500,
        }
        response = await self.client.request(self.leader(at).node_id, "list_offsets", fields)
        found = response.topics[0].partitions[0]
        if found.error_code:
            raise ConnectionError(ErrorCode(found.error_code).name)
        return int(found.offset)

    async def produce(self, at: At, batch: bytes) -> int:
        """Writes a batch. Returns its base offset after the acknowledgement."""
        leader = self.leader(at)
        topic, index = at
        rows = [{"name": topic, "topic_id": leader.topic_id, "partition_data": [{"index": index, "records": batch}]}]
        fields = {"transactional_id": None, "acks": -1, "timeout_ms": 1500, "topic_data": rows}
        response = await self.client.request(leader.node_id, "produce", fields, timeout_s=2.5)
        row = response.responses[0].partition_responses[0]
        if row.error_code:
            raise ConnectionError(ErrorCode(row.error_code).name)
        return int(row.base_offset)


class GroupOffset:
    """The committed offset of one group in one partition. It grows with every commit and must never decrease."""

    def __init__(self, owner: CheckingClient, group: str, at: At) -> None:
        self._owner = owner
        self._group = group
        self._at = at
        self._last = 0
        self._kept = 0
        self._open: set[int] = set()
        """Commits of unknown outcome: they may take effect later, after newer ones."""

    async def commit(self, member_id: str, epoch: int) -> ErrorCode:
        owner = self._owner
        topic, index = self._at
        self._last += 1
        offset = self._last
        row = {
            "partition_index": index,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        fields = {
            "group_id": self._group,
            "generation_id_or_member_epoch": epoch,
            "member_id": member_id,
            "group_instance_id": None,
            "retention_time_ms": -1,
            "topics": [{"name": topic, "topic_id": owner.leader(self._at).topic_id, "partitions": [row]}],
        }
        self._open.add(offset)
        error, _ = await owner.request_coordinator(
            self._group, "offset_commit", fields, lambda response: int(response.topics[0].partitions[0].error_code)
        )
        self._open.discard(offset)
        if error == ErrorCode.NONE:
            self._kept = max(self._kept, offset)
            owner.acked(f"offset {offset} of group {self._group}")
        return error

    async def check(self) -> None:
        expected = self._kept
        found = await fetch_offset(self._owner.client, self._group, self._at)
        if found is None:
            return
        if found < expected and found not in self._open:
            self._owner.report_loss(f"group {self._group} has offset {found}, but {expected} was acknowledged")
        self._kept = max(self._kept, found)


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


def _batch(client: CheckingClient, rows: Iterable[tuple[bytes | None, bytes]]) -> bytes:
    now_ms = client.client.process.environment.clock.now_ms()
    return bytes(build_batch([Record(key=key, value=value, timestamp=now_ms) for key, value in rows]))


class SchemaWriter(CheckingClient):
    """Writes schema versions as a registry does, and reads them. An acknowledged version must not disappear."""

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
        # As a registry does: a broker that has just started responds only when it knows the end offset.
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
                self.report_loss(f"{subject.decode()} has version {seen}, but {version} was acknowledged")
        for subject, version in found.items():
            self._kept[subject] = max(self._kept.get(subject, 0), version)


class RecordDeleter(CheckingClient):
    """Writes records and deletes them. Deleted records must not return."""

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
        response = await self.client.request(self.leader(self._AT).node_id, "delete_records", fields)
        row = response.topics[0].partitions[0]
        if self.certain("delete_records", row.error_code) == ErrorCode.NONE:
            self._low = max(self._low, row.low_watermark)
            self.acked(f"deleted records before offset {row.low_watermark}")

    async def _look(self) -> None:
        expected = self._low
        found = await self.list_offset(self._AT, _EARLIEST)
        if found < expected:
            self.report_loss(f"{SHORT.name} starts at offset {found}, but records before {expected} were deleted")
