"""Consumers of the KIP-848 protocol as their clients behave, over a shard that runs without a broker."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.groups.core.classic.group import Client
from millstream.node.groups.core.consumer.group import ConsumerGroup
from tests.unit.node.coordination.shard_run import ShardRun, message

Partition = tuple[str, int]
REBALANCE_MS = 30_000


class ConsumerRun(ShardRun):
    """Settings as in `ShardRun`; by default every change is assigned at once."""

    def __init__(self, seed: int = 1, **settings: Any) -> None:
        super().__init__(seed, **{"group_consumer_assignment_interval_ms": 0, **settings})

    @property
    def group(self) -> ConsumerGroup:
        group = self.shard.groups["g"]
        assert isinstance(group, ConsumerGroup)
        return group

    def beat(self, member: str, epoch: int, *, group: str = "g", version: int = 1, **fields: Any) -> dict[str, Any]:
        request = message("consumer_group_heartbeat", group_id=group, member_id=member, member_epoch=epoch)
        for name, value in {"subscribed_topic_names": None, "topic_partitions": None, **fields}.items():
            filled = message("consumer_group_heartbeat", **{name: value})
            setattr(request, name, getattr(filled, name))
        client = Client("client", "/127.0.0.1")
        response = self.run(lambda shard, now_ms: shard.consumer.heartbeat(request, client, version, now_ms))
        assert isinstance(response, dict)
        return response

    def join_consumer(self, member: str, *topics: str, **fields: Any) -> dict[str, Any]:
        """The first heartbeat of a member."""
        given: dict[str, Any] = {
            "rebalance_timeout_ms": REBALANCE_MS,
            "subscribed_topic_names": list(topics),
            "topic_partitions": [],
        }
        return self.beat(member, 0, **{**given, **fields})

    def consumer(self, member: str, *topics: str, **fields: Any) -> "Consumer":
        return Consumer(self, member, topics, **fields)

    def topic_name(self, topic_id: UUID) -> str:
        topic = self.topics.by_id(topic_id)
        return f"gone {topic_id}" if topic is None else topic.name

    def settle(self, consumers: Iterable["Consumer"], rounds: int = 10) -> None:
        """Heartbeats of all until nothing changes any more."""
        alive = list(consumers)
        for _ in range(rounds):
            before = [(each.epoch, each.owned) for each in alive]
            for each in alive:
                each.beat()
            if before == [(each.epoch, each.owned) for each in alive]:
                return
        raise AssertionError(f"not settled after {rounds} rounds: {[(c.id, c.epoch, c.owned) for c in alive]}")


class Consumer:
    """A client: it gives partitions up when it is told so, and says what it has when that has changed."""

    def __init__(
        self,
        run: ConsumerRun,
        member: str,
        topics: Iterable[str] = (),
        *,
        instance: str | None = None,
        pattern: str | None = None,
        rack: str | None = None,
        assignor: str | None = None,
    ) -> None:
        self.run = run
        self.id = member
        self.topics = list(topics)
        self.instance = instance
        self.pattern = pattern
        self.rack = rack
        self.assignor = assignor
        self.epoch = 0
        self.owned_ids: dict[UUID, frozenset[int]] = {}
        self.told: dict[UUID, frozenset[int]] = {}
        """What the broker said last; the client may be late in following."""
        self.must_say = True

    @property
    def owned(self) -> frozenset[Partition]:
        return frozenset(
            (self.run.topic_name(topic_id), number)
            for topic_id, numbers in self.owned_ids.items()
            for number in numbers
        )

    def beat(self, *, revoke: bool = True, response_lost: bool = False) -> dict[str, Any]:
        """One heartbeat; when fenced or forgotten, it lets go of everything and joins again."""
        full = self.epoch == 0 or self.must_say
        fields: dict[str, Any] = {"instance_id": self.instance}
        if full:
            fields |= {
                "rebalance_timeout_ms": REBALANCE_MS,
                "subscribed_topic_names": self.topics,
                "subscribed_topic_regex": self.pattern,
                "rack_id": self.rack,
                "server_assignor": self.assignor,
                "topic_partitions": [
                    {"topic_id": topic_id, "partitions": sorted(numbers)}
                    for topic_id, numbers in self.owned_ids.items()
                ],
            }
        try:
            response = self.run.beat(self.id, self.epoch, **fields)
        except KafkaError as error:
            lost = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND)
            if error.code not in lost or self.epoch == 0:
                raise
            self.epoch, self.owned_ids, self.told, self.must_say = 0, {}, {}, True
            return self.beat()
        if response_lost:
            self.must_say = True
            return response
        self.must_say = False
        self.epoch = response["member_epoch"]
        if response.get("assignment") is not None:
            rows = response["assignment"]["topic_partitions"]
            self.told = {row["topic_id"]: frozenset(row["partitions"]) for row in rows}
        if revoke:
            self.follow()
        return response

    def follow(self) -> None:
        """Does what the broker said last."""
        if self.owned_ids != self.told:
            self.owned_ids = dict(self.told)
            self.must_say = True

    def leave(self, epoch: int = -1) -> dict[str, Any]:
        response = self.run.beat(self.id, epoch, instance_id=self.instance)
        self.epoch, self.owned_ids, self.told, self.must_say = 0, {}, {}, True
        return response
