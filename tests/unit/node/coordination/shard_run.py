"""A group shard that runs without a broker: its log is a list, its clock a number, and its runtime is this module."""

from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any

from millstream.config.broker_config import BrokerConfig
from millstream.config.loading import load_broker_config
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.schema import Message, Structure, request_schema
from millstream.node.coordination.core.state_machine import (
    CoordinatorRecord,
    CoordinatorResult,
    DeferredResponse,
    FixedTopics,
)
from millstream.node.groups.core.classic.group import Client
from millstream.node.groups.core.shard import GroupShard

START_MS = 1_000_000


def message(api: str, **fields: Any) -> Any:
    """A request as the dispatcher decodes it; lists of dictionaries become lists of structures. Its type is that of
    the API."""
    return filled(request_schema(api).root, fields)


def filled(structure: Structure, fields: dict[str, Any]) -> Message:
    made = structure.new()
    by_name: dict[str, list[Any]] = {}
    for field in structure.fields:
        by_name.setdefault(field.name, []).append(field)
    for name, value in fields.items():
        children = next((field.children for field in by_name[name] if field.children is not None), None)
        if children is not None and isinstance(value, list):
            value = [filled(children, row) for row in value]
        setattr(made, name, value)
    return made


@cache
def _config(words: tuple[str, ...]) -> BrokerConfig:
    return load_broker_config(overrides=words)


class ShardRun:
    def __init__(self, seed: int = 1, **settings: Any) -> None:
        """Settings with `_` for `.`."""
        self._config = _config(tuple(f"{name.replace('_', '.')}={value}" for name, value in settings.items()))
        self._random = Random(seed)
        self.now_ms = START_MS
        self.topics = FixedTopics()
        self.log: list[CoordinatorRecord] = []
        self.fail_writes: KafkaError | None = None
        self.shard = self._new_shard()
        self.shard.loaded(self.now_ms)

    def _new_shard(self) -> GroupShard:
        return GroupShard(lambda: self._config, self.topics, self._random)

    def restart(self) -> None:
        """The broker dies, and another loads the log."""
        self.shard = self._new_shard()
        for key, value in self.log:
            self.shard.replay(key, value)
        self.shard.replayed()
        self.shard.loaded(self.now_ms)

    def compact(self) -> None:
        """What the cleaner leaves of the log."""
        last = {key: at for at, (key, _) in enumerate(self.log)}
        self.log = [record for at, record in enumerate(self.log) if last[record.key] == at]

    def run(self, operation: Callable[[GroupShard, int], CoordinatorResult[Any]]) -> Any:
        """The response, or the DeferredResponse if it has to wait; KafkaError as the operation raises it."""
        outcome = operation(self.shard, self.now_ms)
        self._write(outcome)
        response = outcome.response
        return response.value if isinstance(response, DeferredResponse) and response.resolved else response

    def _write(self, outcome: CoordinatorResult[Any]) -> None:
        if outcome.records:
            if self.fail_writes is not None:
                if outcome.on_written is not None:
                    outcome.on_written(self.fail_writes)
                raise self.fail_writes
            self.log += outcome.records
            for key, value in outcome.records:
                self.shard.replay(key, value)
        if outcome.on_written is not None:
            outcome.on_written(None)

    def advance(self, ms: int) -> None:
        """Time passes, and what is due happens on the way."""
        end_ms = self.now_ms + ms
        while (deadline_ms := self.shard.timers.next_deadline_ms) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            action = self.shard.timers.take_due(self.now_ms)
            assert action is not None
            outcome = action(self.now_ms)
            if outcome is not None:
                self._write(outcome)
        self.now_ms = end_ms

    # Requests

    def join(
        self,
        group: str = "g",
        member: str = "",
        *,
        instance: str | None = None,
        protocols: Sequence[tuple[str, bytes]] = (("range", b""),),
        kind: str = "consumer",
        session_ms: int = 10_000,
        rebalance_ms: int = 30_000,
        version: int = 9,
        client_id: str = "client",
    ) -> Any:
        request = message(
            "join_group",
            group_id=group,
            member_id=member,
            group_instance_id=instance,
            protocol_type=kind,
            protocols=[{"name": name, "metadata": metadata} for name, metadata in protocols],
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
        )
        client = Client(client_id, "/127.0.0.1")
        return self.run(lambda shard, now_ms: shard.classic.join(request, client, version, now_ms))

    def join_fully(self, group: str = "g", **options: Any) -> Any:
        """With the member id that the first response brings; what the second gives."""
        first = self.join(group, **options)
        if isinstance(first, dict) and first["error_code"] == ErrorCode.MEMBER_ID_REQUIRED:
            return self.join(group, first["member_id"], **options)
        return first

    def sync(
        self,
        member: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        group: str = "g",
        **options: Any,
    ) -> Any:
        rows = [{"member_id": name, "assignment": value} for name, value in (assignments or {}).items()]
        request = message(
            "sync_group", group_id=group, member_id=member, generation_id=generation, assignments=rows, **options
        )
        return self.run(lambda shard, now_ms: shard.classic.sync(request, now_ms))

    def heartbeat(self, member: str, generation: int, group: str = "g", instance: str | None = None) -> Any:
        request = message(
            "heartbeat", group_id=group, member_id=member, generation_id=generation, group_instance_id=instance
        )
        return self.run(lambda shard, now_ms: shard.classic.heartbeat(request, now_ms))

    def leave(self, *members: tuple[str, str | None], group: str = "g") -> Any:
        return self.run(lambda shard, now_ms: shard.classic.leave(group, members, now_ms))

    def commit(
        self,
        offsets: dict[tuple[str, int], int],
        *,
        group: str = "g",
        member: str = "",
        generation: int = -1,
        instance: str | None = None,
        metadata: str | None = "",
        retention_ms: int = -1,
        version: int = 9,
    ) -> dict[tuple[str, int], int]:
        """The error code of each partition."""
        topics: dict[str, list[dict[str, Any]]] = {}
        for (topic, partition), offset in offsets.items():
            row = {"partition_index": partition, "committed_offset": offset, "committed_metadata": metadata}
            topics.setdefault(topic, []).append(row)
        rows = []
        for name, partitions in topics.items():
            known = self.topics.get(name)
            extra = {"topic_id": known.id} if version >= 10 and known is not None else {}
            rows.append({"name": name, "partitions": partitions, **extra})
        request = message(
            "offset_commit",
            group_id=group,
            member_id=member,
            group_instance_id=instance,
            generation_id_or_member_epoch=generation,
            retention_time_ms=retention_ms,
            topics=rows,
        )
        response = self.run(lambda shard, now_ms: shard.offsets.commit(request, version, now_ms))
        return {
            (topic["name"], row["partition_index"]): row["error_code"]
            for topic in response["topics"]
            for row in topic["partitions"]
        }

    def committed(self, group: str = "g") -> dict[tuple[str, int], int]:
        wanted = message("offset_fetch", group_id=group, topics=None)
        response = self.shard.offsets.fetch(wanted, 7)
        return {
            (topic["name"], row["partition_index"]): row["committed_offset"]
            for topic in response["topics"]
            for row in topic["partitions"]
        }
