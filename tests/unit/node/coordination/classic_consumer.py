"""A consumer of the classic protocol as its client behaves, eager or cooperative, in a group of whatever kind."""

import struct
from importlib.resources import files
from typing import Any

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.schema import Schema, split_entries
from tests.unit.node.coordination.consumer_run import ConsumerRun, Partition

_TEXT = files("millstream.node.groups.core.consumer").joinpath("consumer.schema").read_text()
SUBSCRIPTION = Schema(split_entries(_TEXT)["data", "subscription"])
ASSIGNMENT = Schema(split_entries(_TEXT)["data", "assignment"])
VERSION = struct.pack(">h", 3)


def rows(partitions: frozenset[Partition]) -> list[dict[str, Any]]:
    topics = sorted({topic for topic, _ in partitions})
    return [{"topic": topic, "partitions": sorted(n for t, n in partitions if t == topic)} for topic in topics]


def subscription(*topics: str, owned: frozenset[Partition] = frozenset()) -> bytes:
    return VERSION + SUBSCRIPTION.encode({"topics": list(topics), "owned_partitions": rows(owned)}, 3)


def assignment(partitions: frozenset[Partition]) -> bytes:
    return VERSION + ASSIGNMENT.encode({"assigned_partitions": rows(partitions)}, 3)


def partitions_of(data: bytes) -> frozenset[Partition]:
    if not data:
        return frozenset()
    message = ASSIGNMENT.decode(data[2:], 3)
    return frozenset((row.topic, number) for row in message.assigned_partitions for number in row.partitions)


class ClassicConsumer:
    """`turn` is one round of its loop: a heartbeat, and if that says so, JoinGroup and SyncGroup."""

    def __init__(
        self,
        run: ConsumerRun,
        *topics: str,
        cooperative: bool = False,
        instance: str | None = None,
        session_ms: int = 10_000,
    ) -> None:
        self.run = run
        self.topics = topics
        self.cooperative = cooperative
        self.instance = instance
        self.session_ms = session_ms
        self.id = ""
        self.generation = -1
        self.owned: frozenset[Partition] = frozenset()
        self._joining: Any = None
        self._syncing: Any = None
        self._must_join = True

    @property
    def is_waiting(self) -> bool:
        return self._joining is not None or self._syncing is not None

    def turn(self) -> None:
        if self._syncing is not None:
            self._synced(self._syncing)
        elif self._joining is not None:
            self._joined(self._joining)
        elif self._must_join:
            self._join()
        else:
            try:
                self.run.heartbeat(self.id, self.generation, instance=self.instance)
            except KafkaError as error:
                self._failed(error.code)

    def _failed(self, code: int) -> None:
        assert code in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID), (
            code
        )
        if code != ErrorCode.REBALANCE_IN_PROGRESS:
            self.owned, self.generation = frozenset(), -1
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.id = ""
        self._must_join = True

    def _join(self) -> None:
        if not self.cooperative:
            self.owned = frozenset()
        self._must_join = False
        name = "cooperative-sticky" if self.cooperative else "range"
        metadata = subscription(*self.topics, owned=self.owned)
        try:
            response = self.run.join(
                "g", self.id, instance=self.instance, protocols=((name, metadata),), session_ms=self.session_ms
            )
        except KafkaError as error:
            self._failed(error.code)
            return
        if isinstance(response, dict) and response["error_code"] == ErrorCode.MEMBER_ID_REQUIRED:
            self.id = response["member_id"]
            self._join()
        else:
            self._joined(response)

    def _joined(self, response: Any) -> None:
        self._joining = None
        if not isinstance(response, dict):
            if not response.resolved:
                self._joining = response
                return
            response = response.value
        if response["error_code"]:
            self._failed(response["error_code"])
            return
        self.id, self.generation = response["member_id"], response["generation_id"]
        given = self._lead(response["members"]) if response["leader"] == self.id else None
        try:
            self._synced(self.run.sync(self.id, self.generation, given, group_instance_id=self.instance))
        except KafkaError as error:
            self._failed(error.code)

    def _lead(self, members: list[dict[str, Any]]) -> dict[str, bytes]:
        """Deals the partitions out; a cooperative leader gives only what no one else has yet."""
        ids = sorted(member["member_id"] for member in members)
        had: dict[Partition, str] = {}
        wanted: set[Partition] = set()
        for member in members:
            told = SUBSCRIPTION.decode(member["metadata"][2:], 3)
            had |= {(row.topic, n): member["member_id"] for row in told.owned_partitions for n in row.partitions}
            for name in told.topics:
                topic = self.run.topics.get(name)
                wanted |= {(name, n) for n in range(topic.partition_count if topic is not None else 0)}
        dealt: dict[str, set[Partition]] = {member_id: set() for member_id in ids}
        for index, partition in enumerate(sorted(wanted)):
            dealt[ids[index % len(ids)]].add(partition)
        if self.cooperative:
            for member_id, mine in dealt.items():
                mine -= {each for each in mine if had.get(each, member_id) != member_id}
        return {member_id: assignment(frozenset(mine)) for member_id, mine in dealt.items()}

    def _synced(self, response: Any) -> None:
        self._syncing = None
        if not isinstance(response, dict):
            if not response.resolved:
                self._syncing = response
                return
            response = response.value
        if response["error_code"]:
            self._failed(response["error_code"])
            return
        given = partitions_of(response["assignment"])
        if self.cooperative and self.owned - given:
            self._must_join = True  # it gave something up, and says so at once
        self.owned = given

    def leave(self) -> None:
        self.run.leave((self.id, self.instance))
        self.owned, self.id = frozenset(), ""
