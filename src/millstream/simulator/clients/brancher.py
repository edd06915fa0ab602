"""A client that branches topics, and branches of them, writes to the branches, and deletes some.

Invariant: a branch has exactly the committed records that its parent had before the point, whatever happens to nodes,
disks and the parent since. `Branches` has what is known of all branches, and reports what is wrong.
"""

from dataclasses import field

from millstream.common.lazy_dataclass import dataclass
from millstream.formats.model.errors import ErrorCode
from millstream.formats.model.identifiers import NO_TOPIC_ID
from millstream.formats.records.record import Record, build_batch, read_batches
from millstream.simulator.clients.client import SimulatedClient
from millstream.simulator.clients.workload import Workload
from millstream.simulator.machine import Process

INVARIANT = "BranchHasTheRecordsOfItsParent"
_LATEST = -1
_MOST_LIVING = 4
_TRIES = 60
_FINAL_TRIES = 400

Found = list[tuple[int, bytes | None]]
"""Offsets and values of records."""


@dataclass(slots=True)
class KnownBranch:
    name: str
    parent: str
    points: list[int]
    shared: list[Found]
    """The parent's records before the point, by partition."""
    own: dict[int, bytes] = field(default_factory=dict)
    """The acknowledged records of partition 0 of the branch itself, by offset."""


class Branches:
    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self.living: dict[str, KnownBranch] = {}
        self.created = 0
        self.deleted = 0
        self.checked = 0
        self.is_done = False

    def new_client(self, process: Process, bootstrap: list[tuple[str, int]]) -> "Brancher":
        return Brancher(process, bootstrap, self._workload, self)

    def check(self, branch: KnownBranch, partition: int, found: Found) -> None:
        """Compares the records of a partition, read from the beginning to its end or beyond the point."""
        point, expected = branch.points[partition], branch.shared[partition]
        shared = [each for each in found if each[0] < point]
        self.checked += 1
        if shared != expected:
            missing = [each for each in expected if each not in shared][:3]
            extra = [each for each in shared if each not in expected][:3]
            self._report(branch, partition, f"before {point} it lacks {missing} and has {extra}")
        if partition == 0:
            own = {offset: value for offset, value in found if offset >= point}
            lost = [each for each in branch.own.items() if own.get(each[0]) != each[1]]
            if lost:
                self._report(branch, partition, f"it lacks its own records {lost[:3]}")

    def _report(self, branch: KnownBranch, partition: int, what: str) -> None:
        self._workload.report(INVARIANT, f"{branch.name}-{partition}, a branch of {branch.parent}: {what}")


class Brancher:
    def __init__(
        self, process: Process, bootstrap: list[tuple[str, int]], workload: Workload, branches: Branches
    ) -> None:
        self._workload = workload
        self._branches = branches
        self._client = SimulatedClient(process, bootstrap, process.machine.name)
        self._loop = process.loop
        self._roots = {plan.name: plan.partitions for plan in workload.plain_topics}
        self._number = 0

    def start(self) -> None:
        self._loop.create_task(self._run())

    def stop(self) -> None:
        pass

    async def _run(self) -> None:
        workload, branches, chance = self._workload, self._branches, self._client.randomness
        while workload.writing:
            await self._client.pause(0.2, 1.2)
            living = list(branches.living.values())
            if len(living) >= _MOST_LIVING or (living and chance.random() < 0.2):
                await self._delete(chance.choice(living))
            elif living and chance.random() < 0.3:
                await self._write(chance.choice(living))
            elif living and chance.random() < 0.3:
                await self._check(chance.choice(living), _TRIES)
            else:
                await self._branch(chance.choice([*self._roots, *branches.living]))
        for branch in list(branches.living.values()):
            if not await self._check(branch, _FINAL_TRIES):
                workload.report(INVARIANT, f"{branch.name}, a branch of {branch.parent}, cannot be read to its points")
        branches.is_done = True

    def _knows(self, *names: str) -> None:
        self._client.topics = tuple(dict.fromkeys((*self._roots, *self._branches.living, *names)))

    # Creating

    async def _branch(self, parent: str) -> None:
        known = self._branches.living.get(parent)
        partitions = self._roots[parent] if known is None else len(known.points)
        self._knows(parent)
        points: list[int] = []
        shared: list[Found] = []
        for partition in range(partitions):
            end = await self._end(parent, partition, stable=True)
            found = None if end is None else await self._read(parent, partition, end, _TRIES)
            if end is None or found is None:
                return
            points.append(end)
            shared.append([each for each in found if each[0] < end])
        self._number += 1
        name = f"branch-{self._number}"
        if await self._create(name, parent, points):
            self._branches.living[name] = KnownBranch(name, parent, points, shared)
            self._branches.created += 1
            self._workload.log_event("brancher", f"{name} is a branch of {parent} at {points}")
            # A parent that is itself a branch may be deleted as soon as the branch can be read.
            await self._check(self._branches.living[name], _FINAL_TRIES)

    async def _create(self, name: str, parent: str, points: list[int]) -> bool:
        row = {
            "name": name,
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [],
            "configs": [],
            "branch_of": parent,
            "branch_offsets": points,
        }
        is_uncertain = False
        for _ in range(_FINAL_TRIES):
            try:
                response = await self._client.request_any(
                    "create_topics", {"topics": [row], "timeout_ms": 2000, "validate_only": False}
                )
            except OSError:
                is_uncertain = True
            else:
                error = ErrorCode(response.topics[0].error_code)
                if error is ErrorCode.NONE or (is_uncertain and error is ErrorCode.TOPIC_ALREADY_EXISTS):
                    return True
                if not error.retriable:
                    return False
                is_uncertain = True
            await self._client.pause(0.05, 0.3)
        return False

    async def _delete(self, branch: KnownBranch) -> None:
        del self._branches.living[branch.name]
        fields = {"topics": [{"name": branch.name, "topic_id": NO_TOPIC_ID}], "topic_names": [], "timeout_ms": 2000}
        for _ in range(_FINAL_TRIES):
            try:
                row = (await self._client.request_any("delete_topics", fields)).responses[0]
            except OSError:
                pass
            else:
                if row.error_code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                    self._branches.deleted += 1
                    self._workload.log_event("brancher", f"{branch.name} is deleted")
                    return
            await self._client.pause(0.05, 0.3)

    # Writing and reading

    async def _write(self, branch: KnownBranch) -> None:
        client = self._client
        self._knows(branch.name)
        value = f"{branch.name}/{len(branch.own)}/{self._loop.time():.3f}".encode()
        now_ms = client.process.environment.clock.now_ms()
        leader = client.leader(branch.name, 0)
        if leader is None:
            await client.recover()
            return
        batch = build_batch([Record(key=None, value=value, timestamp=now_ms)])
        topic = {
            "name": branch.name,
            "topic_id": leader.topic_id,
            "partition_data": [{"index": 0, "records": bytes(batch)}],
        }
        fields = {"transactional_id": None, "acks": -1, "timeout_ms": 2000, "topic_data": [topic]}
        try:
            response = await client.request(leader.node_id, "produce", fields, timeout_s=2.5)
        except OSError:
            await client.recover()
            return
        row = response.responses[0].partition_responses[0]
        if row.error_code == ErrorCode.NONE:
            branch.own[row.base_offset] = value
        else:
            await client.recover()

    async def _check(self, branch: KnownBranch, tries: int) -> bool:
        """Whether all partitions could be read up to the points."""
        self._knows(branch.name)
        acknowledged = max(branch.own, default=-1) + 1
        for partition, point in enumerate(branch.points):
            up_to = max(point, acknowledged) if partition == 0 else point
            found = await self._read(branch.name, partition, up_to, tries)
            if found is None:
                return False
            self._branches.check(branch, partition, found)
        return True

    async def _end(self, topic: str, partition: int, *, stable: bool) -> int | None:
        client = self._client
        for _ in range(_TRIES):
            leader = client.leader(topic, partition)
            if leader is not None:
                row = {"partition_index": partition, "current_leader_epoch": leader.epoch, "timestamp": _LATEST}
                fields = {
                    "replica_id": -1,
                    "isolation_level": int(stable),
                    "topics": [{"name": topic, "partitions": [row]}],
                    "timeout_ms": 0,
                }
                try:
                    response = await client.request(leader.node_id, "list_offsets", fields)
                    found = response.topics[0].partitions[0]
                    if found.error_code == ErrorCode.NONE:
                        return int(found.offset)
                except OSError:
                    pass
            await client.recover()
        return None

    async def _read(self, topic: str, partition: int, up_to: int, tries: int) -> Found | None:
        """All committed records from offset 0 up to an offset, or a little further; None if they cannot be read."""
        client, position = self._client, 0
        found: Found = []
        for _ in range(tries):
            if position >= up_to:
                return found
            error, row = await client.fetch(topic, partition, position, wait_ms=200)
            if error is ErrorCode.OFFSET_OUT_OF_RANGE and tries == _FINAL_TRIES:
                self._workload.report(INVARIANT, f"offset {position} of {topic}-{partition} is out of range")
            if error is not ErrorCode.NONE or row is None:
                await client.recover()
                continue
            for header, records in read_batches(bytes(row.records or b"")):
                if header.last_offset >= position:
                    found += [(each.offset, each.value) for each in records if each.offset >= position]
                    position = header.last_offset + 1
        return found if position >= up_to else None
