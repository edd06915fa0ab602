"""The workload during the faults: producers, a committer of offsets and an administrator. All is recorded.

Producers are idempotent with acks=all. Each has one batch in flight per partition and sends it again until it is
acknowledged or a timeout ends; so a rejected sequence number means that an acknowledged record is lost. After a timeout
the outcome is unknown, and the producer continues with a new producer id.
"""

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import field
from uuid import UUID

from millstream.common.lazy_dataclass import dataclass
from millstream.formats.model.errors import ErrorCode
from millstream.formats.records.record import Record, build_batch
from millstream.simulator.clients.client import GROUP, SimulatedClient
from millstream.simulator.clients.transaction_tracker import TransactionTracker
from millstream.simulator.history.operations import Recorder
from millstream.simulator.machine import Process

GIVE_UP_SECONDS = 12.0
_UPGRADE, _SAFE_DOWNGRADE = 1, 2
"""Upgrade types of UpdateFeatures."""
SEQUENCE_REFUSALS = frozenset(
    (
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    )
)


@dataclass(frozen=True, slots=True)
class TopicPlan:
    name: str
    partitions: int
    replication_factor: int
    settings: dict[str, str] = field(default_factory=dict)
    plain: bool = True
    """Whether producers without transactions write to it."""

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.settings.get("cleanup.policy", "")


@dataclass(frozen=True, slots=True)
class SecurityChanges:
    """Changes of users and ACLs (`permissions.py`)."""

    add_users: Callable[[SimulatedClient], Awaitable[bool]]
    change_acls: Callable[[SimulatedClient], Awaitable[str]]


def partition_name(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


class Workload:
    """State that all clients share."""

    def __init__(
        self,
        topics: tuple[TopicPlan, ...],
        recorder: Recorder,
        *,
        log_event: Callable[[str, str], None],
        report: Callable[[str, str], None],
    ) -> None:
        self.topics = topics
        self.recorder = recorder
        self.log_event = log_event
        self.report = report
        """Reports a violation: the name of the invariant, and a description."""
        self.writing = True
        self.reading = True
        self.may_lose_records = False
        """Whether all machines may lose power at once: then only the metadata is durable."""
        self.admin_speed = 1.0
        """Factor by which the administrator is faster than usual."""
        self.has_quotas = False
        """Whether the administrator limits clients."""
        self.quota_changes = 0
        self.security: SecurityChanges | None = None
        """What the administrator does in a secured cluster."""
        self.created: set[str] = set()
        """Topics whose creation was acknowledged and whose deletion was not requested."""
        self.acked: dict[tuple[str, int], int] = {}
        """By partition: the offset after the last acknowledged record."""
        self.acked_at: dict[tuple[str, int], float] = {}
        self.acked_count = 0
        self.in_flight = 0
        """Batches that are neither acknowledged nor timed out."""
        self.given_up = 0
        self.committed_at = 0.0
        """Time of the last acknowledged offset commit."""
        self.tracker = TransactionTracker(log_event=log_event)
        self.transaction_versions: tuple[int, ...] = (1, 2, 2)
        """Transaction versions of clients; one is chosen for each instance."""
        self.transaction_levels: tuple[int, ...] = (0, 1, 2)
        """Levels of the feature transaction.version that the administrator sets."""
        self.transaction_pause_s = 1.1
        self.fenced_pause_s = 5.0
        """Maximum pause of a fenced client before it requests its transactional id again."""
        self.response_timeouts_s: tuple[float, ...] = (2.5, 8.0)
        """Response timeouts of pipelining producers. Some are longer than a failover, as in clients by default."""
        self.has_stale_clients = False
        """Whether some clients accept old metadata, so that they return to a deposed leader."""

    @property
    def plain_topics(self) -> tuple[TopicPlan, ...]:
        return tuple(plan for plan in self.topics if plan.plain)

    def note_acked(self, at: tuple[str, int], offset: int) -> None:
        self.acked_count += 1
        if not self.may_lose_records:
            self.acked[at] = max(self.acked.get(at, 0), offset + 1)
        self.acked_at[at] = self.recorder.now()


class Producer:
    """Writes to all partitions of the plain topics."""

    def __init__(
        self,
        process: Process,
        bootstrap: list[tuple[str, int]],
        workload: Workload,
        pause_s: float,
        *,
        accepts_stale_metadata: bool = False,
    ) -> None:
        self._workload = workload
        self._name = process.machine.name
        self._client = SimulatedClient(process, bootstrap, self._name)
        self._client.topics = tuple(plan.name for plan in workload.plain_topics)
        self._client.compares_epochs = not accepts_stale_metadata
        self._loop = process.loop
        self._pause = pause_s
        self._written = 0

    def start(self) -> None:
        for plan in self._workload.plain_topics:
            for partition in range(plan.partitions):
                self._loop.create_task(self._write(plan.name, partition))

    def stop(self) -> None:
        pass

    async def _write(self, topic: str, partition: int) -> None:
        workload, client = self._workload, self._client
        await client.pause(0.0, self._pause)
        while workload.writing:
            producer_id, epoch = await self._producer_id()
            sequence = 0
            while workload.writing:
                count = client.randomness.choice((1, 1, 1, 2, 3))
                workload.in_flight += 1
                acked = await self._write_batch(topic, partition, count, producer_id, epoch, sequence)
                workload.in_flight -= 1
                if not acked:
                    break
                sequence += count
                await client.pause(0.2 * self._pause, 1.8 * self._pause)
                await client.refresh_if_stale()

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

    async def _write_batch(
        self, topic: str, partition: int, count: int, producer_id: int, epoch: int, sequence: int
    ) -> bool:
        """Writes a batch. Returns whether it was acknowledged."""
        workload, client, recorder = self._workload, self._client, self._workload.recorder
        name = partition_name(topic, partition)
        values = [f"{self._name}/{self._written + at}" for at in range(count)]
        self._written += count
        sends = [recorder.send(f"{self._name}/{producer_id}", name, value) for value in values]
        now_ms = client.process.environment.clock.now_ms()
        batch = build_batch(
            [Record(key=None, value=value.encode(), timestamp=now_ms) for value in values],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        deadline = self._loop.time() + GIVE_UP_SECONDS
        while self._loop.time() < deadline and workload.writing:
            error, offset = await self._send(topic, partition, bytes(batch))
            if error == ErrorCode.NONE:
                for at, send in enumerate(sends):
                    recorder.acked(send, offset + at)
                workload.note_acked((topic, partition), offset + count - 1)
                workload.log_event(self._name, f"acked {name} offset {offset} ({values[0]})")
                return True
            if error == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                for send in sends:
                    recorder.acked(send, None)
                return True
            if error in SEQUENCE_REFUSALS and workload.may_lose_records:
                return False
            if error in SEQUENCE_REFUSALS:
                workload.report(
                    "AcknowledgedIsDurable",
                    f"{name} rejected sequence {sequence} of producer {producer_id} with {error.name}, "
                    "although all earlier batches were acknowledged",
                )
                return False
            await client.recover()
        workload.given_up += 1
        return False

    async def _send(self, topic: str, partition: int, batch: bytes) -> tuple[ErrorCode, int]:
        client = self._client
        leader = client.leader(topic, partition)
        if leader is None:
            return ErrorCode.LEADER_NOT_AVAILABLE, -1
        fields = {
            "transactional_id": None,
            "acks": -1,
            "timeout_ms": 1500,
            "topic_data": [
                {
                    "name": topic,
                    "topic_id": leader.topic_id,
                    "partition_data": [{"index": partition, "records": batch}],
                }
            ],
        }
        try:
            response = await client.request(leader.node_id, "produce", fields, timeout_s=2.5)
        except OSError:
            return ErrorCode.NETWORK_EXCEPTION, -1
        row = response.responses[0].partition_responses[0]
        return ErrorCode(row.error_code), row.base_offset


class Committer:
    """Commits growing offsets for a group and reads them. The committed offset must not decrease.

    A commit of unknown outcome may take effect later, after newer ones; then its offset may be read.
    """

    _GROUP = "tellers"

    def __init__(self, process: Process, bootstrap: list[tuple[str, int]], workload: Workload) -> None:
        self._workload = workload
        self._name = process.machine.name
        self._client = SimulatedClient(process, bootstrap, self._name)
        self._topic = workload.topics[0].name
        self._client.topics = (self._topic,)
        self._loop = process.loop
        self._coordinator: int | None = None
        self._acked = -1
        self._open: set[int] = set()

    def start(self) -> None:
        self._loop.create_task(self._run())

    def stop(self) -> None:
        pass

    async def _run(self) -> None:
        workload, client, offset = self._workload, self._client, 0
        while workload.writing:
            offset += 1
            try:
                error = await self._commit(offset)
                if error == ErrorCode.NONE:
                    self._acked = offset
                    workload.committed_at = workload.recorder.now()
                    workload.log_event(self._name, f"acked offset {offset} of group {self._GROUP}")
                else:
                    self._open.add(offset)
                    self._coordinator = None
                if client.randomness.random() < 0.4:
                    await self._read_offset()
            except OSError:
                self._open.add(offset)
                self._coordinator = None
            await client.pause(0.1, 0.8)

    async def _commit(self, offset: int) -> ErrorCode:
        node_id, topic_id = await self._coordinator_and_topic()
        fields = {
            "group_id": self._GROUP,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "retention_time_ms": -1,
            "topics": [
                {
                    "name": self._topic,
                    "topic_id": topic_id,
                    "partitions": [
                        {
                            "partition_index": 0,
                            "committed_offset": offset,
                            "committed_leader_epoch": -1,
                            "committed_metadata": "",
                        }
                    ],
                }
            ],
        }
        response = await self._client.request(node_id, "offset_commit", fields)
        return ErrorCode(response.topics[0].partitions[0].error_code)

    async def _read_offset(self) -> None:
        expected = self._acked
        node_id, topic_id = await self._coordinator_and_topic()
        topics = [{"name": self._topic, "topic_id": topic_id, "partition_indexes": [0]}]
        group = {"group_id": self._GROUP, "member_id": None, "member_epoch": -1, "topics": topics}
        response = await self._client.request(node_id, "offset_fetch", {"groups": [group], "require_stable": True})
        row = response.groups[0]
        if row.error_code:
            self._coordinator = None
            return
        seen = row.topics[0].partitions[0]
        found = seen.committed_offset
        if seen.error_code == ErrorCode.NONE and found < expected and found not in self._open:
            self._workload.report(
                "AcknowledgedIsDurable",
                f"group {self._GROUP} has offset {found} on node {node_id}, but {expected} was acknowledged",
            )

    async def _coordinator_and_topic(self) -> tuple[int, UUID]:
        """The coordinator and the topic id."""
        client = self._client
        if self._coordinator is None:
            await client.refresh()
            self._coordinator = await client.find_coordinator(GROUP, self._GROUP)
        leader = client.leader(self._topic, 0)
        if leader is None:
            self._coordinator = None
            raise ConnectionError("unknown topic")
        return self._coordinator, leader.topic_id


class Administrator:
    """Creates the topics, then keeps changing topics, settings, replicas and leaders."""

    def __init__(
        self, process: Process, bootstrap: list[tuple[str, int]], workload: Workload, broker_groups: list[list[int]]
    ) -> None:
        """`broker_groups`: the brokers of each machine. Replicas are assigned to different machines."""
        self._workload = workload
        self._name = process.machine.name
        self._client = SimulatedClient(process, bootstrap, self._name)
        self._client.topics = tuple(plan.name for plan in workload.topics)
        self._loop = process.loop
        self._broker_groups = broker_groups
        self._made = 0
        self._kept: list[str] = []
        self._transaction_version = 2
        self.ready = False
        """Whether the topics exist."""

    def start(self) -> None:
        self._loop.create_task(self._run())

    def stop(self) -> None:
        pass

    async def _run(self) -> None:
        for plan in self._workload.topics:
            await self._create_until_acknowledged(plan)
        if self._workload.transaction_versions == (1,):
            try:
                await self._change_transaction_version()
            except OSError:
                pass
        if self._workload.has_quotas:
            with contextlib.suppress(OSError):
                await self._limit()
        await self._add_users()
        self.ready = True
        changes = [self._create, self._delete, self._configure, self._reassign, self._elect]
        if self._workload.transaction_versions == (1,):
            changes.append(self._change_transaction_version)  # clients of version 1 work with every broker version
        if self._workload.has_quotas:
            changes.append(self._limit)
        if self._workload.security is not None:
            changes.append(self._change_acls)
        while True:
            await self._client.pause(0.5 / self._workload.admin_speed, 2.5 / self._workload.admin_speed)
            if not self._workload.writing:
                return
            try:
                await self._client.randomness.choice(changes)()
            except OSError as error:
                self._workload.log_event(self._name, f"no response: {error}")

    async def _add_users(self) -> None:
        while self._workload.security is not None:
            with contextlib.suppress(OSError):
                if await self._workload.security.add_users(self._client):
                    return
            await self._client.pause(0.1, 0.4)

    async def _change_acls(self) -> None:
        assert self._workload.security is not None
        self._workload.log_event(self._name, await self._workload.security.change_acls(self._client))

    async def _create_until_acknowledged(self, plan: TopicPlan) -> None:
        while True:
            try:
                error = await self._create_topic(plan)
                if error in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                    return
            except OSError:
                pass
            await self._client.pause(0.1, 0.4)

    async def _create_topic(self, plan: TopicPlan) -> ErrorCode:
        response = await self._client.request_any(
            "create_topics",
            {
                "topics": [
                    {
                        "name": plan.name,
                        "num_partitions": plan.partitions,
                        "replication_factor": plan.replication_factor,
                        "assignments": [],
                        "configs": [{"name": name, "value": value} for name, value in plan.settings.items()],
                    }
                ],
                "timeout_ms": 2000,
                "validate_only": False,
            },
        )
        error = ErrorCode(response.topics[0].error_code)
        self._workload.log_event(self._name, f"create topic {plan.name}: {error.name}")
        if error in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            self._workload.created.add(plan.name)
        return error

    async def _create(self) -> None:
        self._made += 1
        randomness = self._client.randomness
        name = f"passing-{self._made}"
        self._kept.append(name)
        await self._create_topic(
            TopicPlan(name, randomness.randint(1, 3), randomness.randint(1, min(3, len(self._broker_groups))))
        )

    async def _delete(self) -> None:
        if not self._kept:
            return
        name = self._kept.pop(self._client.randomness.randrange(len(self._kept)))
        self._workload.created.discard(name)
        fields = {
            "topics": [{"name": name, "topic_id": UUID(int=0)}],
            "topic_names": [name],
            "timeout_ms": 2000,
        }
        response = await self._client.request_any("delete_topics", fields)
        self._workload.log_event(self._name, f"delete topic {name}: {ErrorCode(response.responses[0].error_code).name}")

    async def _configure(self) -> None:
        randomness = self._client.randomness
        topic = randomness.choice(self._workload.topics).name
        name, value = randomness.choice(
            (("segment.ms", "60000"), ("segment.ms", "1000"), ("flush.messages", "1"), ("flush.messages", "20"))
        )
        response = await self._client.request_any(
            "incremental_alter_configs",
            {
                "resources": [
                    {
                        "resource_type": 2,
                        "resource_name": topic,
                        "configs": [{"name": name, "config_operation": 0, "value": value}],
                    }
                ],
                "validate_only": False,
            },
        )
        self._workload.log_event(
            self._name, f"{topic}: {name}={value}: {ErrorCode(response.responses[0].error_code).name}"
        )

    async def _limit(self) -> None:
        """Sets or removes quotas that throttle clients; nothing may be lost because of them."""
        randomness = self._client.randomness
        key, values = randomness.choice(
            (
                ("producer_byte_rate", (200.0, 2000.0, 50_000.0)),
                ("consumer_byte_rate", (5000.0, 50_000.0)),
                ("controller_mutation_rate", (0.5, 5.0)),
            )
        )
        entity = randomness.choice(([("user", None)], [("client-id", None)], [("user", "ANONYMOUS")]))
        remove = randomness.random() < 0.3
        response = await self._client.request_any(
            "alter_client_quotas",
            {
                "entries": [
                    {
                        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
                        "ops": [{"key": key, "value": randomness.choice(values), "remove": remove}],
                    }
                ],
                "validate_only": False,
            },
        )
        error = ErrorCode(response.entries[0].error_code)
        self._workload.quota_changes += error is ErrorCode.NONE
        self._workload.log_event(self._name, f"quota {key} of {entity}: {error.name}")

    async def _reassign(self) -> None:
        randomness = self._client.randomness
        plan = randomness.choice(self._workload.topics)
        partition = randomness.randrange(plan.partitions)
        machines = randomness.sample(self._broker_groups, plan.replication_factor)
        replicas = [brokers[0] if len(brokers) == 1 else randomness.choice(brokers) for brokers in machines]
        response = await self._client.request_any(
            "alter_partition_reassignments",
            {
                "timeout_ms": 2000,
                "topics": [{"name": plan.name, "partitions": [{"partition_index": partition, "replicas": replicas}]}],
            },
        )
        code = response.error_code or response.responses[0].partitions[0].error_code
        self._workload.log_event(self._name, f"reassign {plan.name}-{partition} to {replicas}: {ErrorCode(code).name}")

    async def _change_transaction_version(self) -> None:
        level = self._client.randomness.choice(self._workload.transaction_levels)
        upgrade_type = _UPGRADE if level > self._transaction_version else _SAFE_DOWNGRADE
        update = {"feature": "transaction.version", "max_version_level": level, "upgrade_type": upgrade_type}
        fields = {"feature_updates": [update], "timeout_ms": 2000, "validate_only": False}
        response = await self._client.request_any("update_features", fields)
        self._workload.log_event(self._name, f"transaction.version={level}: {ErrorCode(response.error_code).name}")
        if response.error_code == ErrorCode.NONE:
            self._transaction_version = level

    async def _elect(self) -> None:
        response = await self._client.request_any(
            "elect_leaders", {"election_type": 0, "topic_partitions": None, "timeout_ms": 2000}
        )
        self._workload.log_event(self._name, f"elect preferred leaders: {ErrorCode(response.error_code).name}")
