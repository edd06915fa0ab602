"""Members of streams groups as Kafka Streams behaves, over a shard that runs without a broker."""

from collections.abc import Iterable
from typing import Any

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.schema import request_schema
from millstream.node.groups.core.classic.group import Client
from millstream.node.groups.core.streams.group import StreamsGroup
from millstream.node.groups.core.streams.groups import HeartbeatResult
from tests.unit.node.coordination.shard_run import ShardRun, filled, message

REBALANCE_MS = 30_000
ROLES = ("active_tasks", "standby_tasks", "warmup_tasks")
LOST = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND)
Task = tuple[str, int]


def topic_info(name: str, partitions: int = 0, replicas: int = 0, **configs: str) -> dict[str, Any]:
    rows = [{"key": key, "value": value} for key, value in configs.items()]
    return {"name": name, "partitions": partitions, "replication_factor": replicas, "topic_configs": rows}


def subtopology(name: str, *sources: str, **fields: Any) -> dict[str, Any]:
    """Fields as in the request; those that are left out are empty."""
    empty: dict[str, Any] = {
        "source_topic_regex": [],
        "state_changelog_topics": [],
        "repartition_sink_topics": [],
        "repartition_source_topics": [],
        "copartition_groups": [],
    }
    return {"subtopology_id": name, "source_topics": list(sources), **empty, **fields}


def copartition(sources: Iterable[int] = (), repartition: Iterable[int] = ()) -> dict[str, Any]:
    return {
        "source_topics": list(sources),
        "source_topic_regex": [],
        "repartition_source_topics": list(repartition),
    }


def topology(*subtopologies: dict[str, Any], epoch: int = 0) -> dict[str, Any]:
    return {"epoch": epoch, "subtopologies": list(subtopologies)}


COUNTS = topology(
    subtopology("0", "words", repartition_sink_topics=["app-by-word"]),
    subtopology(
        "1",
        repartition_source_topics=[topic_info("app-by-word", 0, 0, **{"cleanup.policy": "delete"})],
        state_changelog_topics=[topic_info("app-changelog", 0, 0, **{"cleanup.policy": "compact"})],
    ),
)
"""Reads `words`, repartitions them, and counts them: two subtopologies, the second with state."""
INTERNAL = ("app-by-word", "app-changelog")


def heartbeat(**fields: Any) -> Any:
    """A request. A topology is given as a dictionary."""
    given: dict[str, Any] = {
        **dict.fromkeys((*ROLES, "client_tags", "task_offsets", "task_end_offsets")),
        "group_id": "g",
        **fields,
    }
    sent = given.pop("topology", None)
    request = message("streams_group_heartbeat", **given)
    request.topology = None
    if sent is not None:
        request.topology = _structure("topology", sent)
    endpoint = given.get("user_endpoint")
    if isinstance(endpoint, dict):
        request.user_endpoint = _structure("user_endpoint", endpoint)
    return request


def _structure(name: str, value: dict[str, Any]) -> Any:
    root = request_schema("streams_group_heartbeat").root
    children = next(field.children for field in root.fields if field.name == name)
    assert children is not None
    return filled(children, value)


class StreamsRun(ShardRun):
    """Settings as in `ShardRun`; by default every change is assigned at once."""

    def __init__(self, seed: int = 1, **settings: Any) -> None:
        quick = {"group_streams_assignment_interval_ms": 0, "group_streams_initial_rebalance_delay_ms": 0}
        super().__init__(seed, **{**quick, **settings})

    @property
    def group(self) -> StreamsGroup:
        group = self.shard.groups["g"]
        assert isinstance(group, StreamsGroup)
        return group

    def send(self, request: Any) -> HeartbeatResult:
        client = Client("client", "/127.0.0.1")
        response = self.run(lambda shard, now_ms: shard.streams.heartbeat(request, client, now_ms))
        assert isinstance(response, HeartbeatResult)
        return response

    def beat(self, member: str, epoch: int, **fields: Any) -> HeartbeatResult:
        return self.send(heartbeat(member_id=member, member_epoch=epoch, **fields))

    def join_streams(self, member: str, sent: dict[str, Any] = COUNTS, **fields: Any) -> HeartbeatResult:
        """The first heartbeat of a member."""
        given: dict[str, Any] = {
            "rebalance_timeout_ms": REBALANCE_MS,
            "process_id": f"process-of-{member}",
            "topology": sent,
            **{role: [] for role in ROLES},
        }
        return self.beat(member, fields.pop("member_epoch", 0), **{**given, **fields})

    def make_internal_topics(self, missing: HeartbeatResult) -> None:
        """What the handler does."""
        for topic in missing.missing:
            self.topics.add(topic.name, topic.partition_count)

    def settle(self, members: Iterable["StreamsMember"], rounds: int = 12) -> None:
        """Heartbeats of all until nothing changes any more."""
        alive = list(members)
        for _ in range(rounds):
            before = [(each.epoch, each.owned) for each in alive]
            for each in alive:
                each.beat()
            if before == [(each.epoch, each.owned) for each in alive]:
                return
        raise AssertionError(f"not settled after {rounds} rounds: {[(c.id, c.epoch, c.owned) for c in alive]}")


class StreamsMember:
    """A client: it gives tasks up when it is told so, and says what it has when that has changed."""

    def __init__(self, run: StreamsRun, member: str, process: str | None = None, sent: dict[str, Any] = COUNTS) -> None:
        self.run = run
        self.id = member
        self.process = process or f"process-of-{member}"
        self.sent = sent
        self.epoch = 0
        self.owned: dict[str, frozenset[Task]] = dict.fromkeys(ROLES, frozenset())
        self.told: dict[str, frozenset[Task]] = dict(self.owned)
        """What the broker said last; the client may be late in following."""
        self.must_say = True
        self.statuses: list[int] = []

    @property
    def active(self) -> frozenset[Task]:
        return self.owned["active_tasks"]

    @property
    def standby(self) -> frozenset[Task]:
        return self.owned["standby_tasks"]

    def beat(self, *, revoke: bool = True, response_lost: bool = False) -> HeartbeatResult:
        """One heartbeat; when fenced or forgotten, it lets go of everything and joins again."""
        fields: dict[str, Any] = {}
        if self.epoch == 0:
            self._forget()
            fields |= {"rebalance_timeout_ms": REBALANCE_MS, "process_id": self.process, "topology": self.sent}
        if self.must_say:
            fields |= {role: _rows(tasks) for role, tasks in self.owned.items()}
        try:
            result = self.run.beat(self.id, self.epoch, **fields)
        except KafkaError as error:
            if error.code not in LOST or self.epoch == 0:
                raise
            self.epoch = 0
            return self.beat()
        self.run.make_internal_topics(result)
        if response_lost:
            self.must_say = True
            return result
        self.must_say = False
        response = result.response
        self.epoch = response["member_epoch"]
        self.statuses = [status["status_code"] for status in response["status"]]
        if response["active_tasks"] is not None:
            self.told = {role: frozenset(_read(response[role])) for role in ROLES}
        if revoke:
            self.follow()
        return result

    def follow(self) -> None:
        """Does what the broker said last."""
        if self.owned != self.told:
            self.owned = dict(self.told)
            self.must_say = True

    def leave(self) -> None:
        self.run.beat(self.id, -1)
        self.epoch = 0
        self._forget()

    def _forget(self) -> None:
        self.owned = dict.fromkeys(ROLES, frozenset())
        self.told = dict(self.owned)
        self.must_say = True


def _rows(tasks: Iterable[Task]) -> list[dict[str, Any]]:
    found: dict[str, list[int]] = {}
    for name, number in sorted(tasks):
        found.setdefault(name, []).append(number)
    return [{"subtopology_id": name, "partitions": numbers} for name, numbers in found.items()]


def _read(rows: Iterable[Any]) -> list[Task]:
    return [(row["subtopology_id"], number) for row in rows for number in row["partitions"]]
