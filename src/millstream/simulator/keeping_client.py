"""What clients share that check that nothing acknowledged is taken back: which node to ask, what was acknowledged when.

What a client has read counts as acknowledged, too: a client that knows an offset or a schema may act on it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.simulator.client import GROUP, Leader, SimulatedClient
from millstream.simulator.machine import Process
from millstream.simulator.transaction_book import At
from millstream.simulator.transaction_workload import fetch_offset
from millstream.simulator.workload import Workload

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
"""What leaves the outcome open, or says to ask again."""


class Progress:
    """When each client was acknowledged something last."""

    def __init__(self) -> None:
        self.acked_at: dict[str, float] = {}
        self.acked: dict[str, int] = {}

    def note(self, name: str, at: float) -> None:
        self.acked_at[name] = at
        self.acked[name] = self.acked.get(name, 0) + 1

    def idle(self, names: Iterable[str], since: float) -> list[str]:
        return [name for name in names if self.acked_at.get(name, 0.0) <= since]


class KeepingClient(ABC):
    """A program: one loop, which goes on whatever happens to the node."""

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
            await self.client.rest(0.02, 0.3)

    @abstractmethod
    async def step(self) -> None:
        """Does one thing; OSError where the outcome is not known."""

    def acked(self, what: str) -> None:
        self._progress.note(self.name, self.workload.recorder.now())
        self.workload.tell(self.name, f"acked: {what}")

    def taken_back(self, what: str) -> None:
        self.workload.report("AckedIsKept", f"{self.name}: {what}")

    async def ask_coordinator(
        self,
        group: str,
        api: str,
        fields: Mapping[str, Any],
        code_of: Callable[[Message], int] = lambda response: int(response.error_code),
    ) -> tuple[ErrorCode, Message]:
        if self._coordinator is None:
            self._coordinator = await self.client.find_coordinator(GROUP, group)
        response = await self.client.ask(self._coordinator, api, fields)
        return self.certain(api, code_of(response)), response

    def leader(self, at: At) -> Leader:
        found = self.client.leader(*at)
        if found is None:
            raise ConnectionError(f"the leader of {at[0]}-{at[1]} is not known")
        return found

    @staticmethod
    def certain(api: str, code: int) -> ErrorCode:
        """The error of a response that is final; OSError for one that is not."""
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
        response = await self.client.ask(self.leader(at).node_id, "list_offsets", fields)
        found = response.topics[0].partitions[0]
        if found.error_code:
            raise ConnectionError(ErrorCode(found.error_code).name)
        return int(found.offset)

    async def produce(self, at: At, batch: bytes) -> int:
        """The offset of the first record, once it is acknowledged."""
        leader = self.leader(at)
        topic, index = at
        rows = [{"name": topic, "topic_id": leader.topic_id, "partition_data": [{"index": index, "records": batch}]}]
        fields = {"transactional_id": None, "acks": -1, "timeout_ms": 1500, "topic_data": rows}
        response = await self.client.ask(leader.node_id, "produce", fields, timeout_s=2.5)
        row = response.responses[0].partition_responses[0]
        if row.error_code:
            raise ConnectionError(ErrorCode(row.error_code).name)
        return int(row.base_offset)


class GroupOffset:
    """The offset of one group in one partition: it grows with every commit, and never goes back."""

    def __init__(self, owner: KeepingClient, group: str, at: At) -> None:
        self._owner = owner
        self._group = group
        self._at = at
        self._last = 0
        self._kept = 0
        self._open: set[int] = set()
        """Commits whose outcome is not known: they may come into force later, after newer ones."""

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
        error, _ = await owner.ask_coordinator(
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
            self._owner.taken_back(f"group {self._group} is at offset {found}, and {expected} was acknowledged")
        self._kept = max(self._kept, found)
