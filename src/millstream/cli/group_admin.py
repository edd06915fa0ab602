"""Groups as the command line sees them, and consumer groups (both protocols) by way of librdkafka's admin client.

`Groups` is what the commands of `group_commands` need; share groups, for which librdkafka has no admin calls, fulfil it
in `share_admin`.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from millstream.cli import exit_codes
from millstream.cli.terminal import CommandFailedError

if TYPE_CHECKING:
    from millstream.client import Client

T = TypeVar("T")
Place = tuple[str, int]
"""Topic and partition."""
IDLE_STATES = frozenset({"Empty", "Dead"})
_GRACE_S = 5.0


class Position(NamedTuple):
    """How far a group is in a partition. `lag` is the broker's own count, where it counts better than we could."""

    offset: int
    lag: int | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    group: str
    type: str
    state: str


@dataclass(frozen=True, slots=True)
class Member:
    id: str
    client: str
    host: str
    instance: str | None = None
    partitions: Sequence[Place] = ()


@dataclass(frozen=True, slots=True)
class Group:
    group: str
    type: str
    state: str
    assignor: str
    coordinator: str
    members: Sequence[Member] = field(default_factory=tuple)

    @property
    def is_active(self) -> bool:
        return self.state not in IDLE_STATES or bool(self.members)


class Groups(Protocol):
    """All that commands do with groups of one kind."""

    def list(self) -> Sequence[Listed]: ...

    def describe(self, group: str) -> Group | None:
        """None if there is no such group."""
        ...

    def offsets(self, group: str) -> Mapping[Place, Position]:
        """The next offset of each partition for which the group has one."""
        ...

    def set_offsets(self, group: str, offsets: Mapping[Place, int]) -> None: ...

    def delete(self, group: str) -> None: ...


class ConsumerGroups:
    """Classic and KIP-848 groups."""

    def __init__(self, client: "Client") -> None:
        import confluent_kafka
        import confluent_kafka.admin

        self._kafka: Any = confluent_kafka
        self._connection = client.connection
        admin: Any = confluent_kafka.admin
        self._admin = admin.AdminClient(client.connection.librdkafka())

    def list(self) -> list[Listed]:
        result: Any = self._result(self._admin.list_consumer_groups(request_timeout=self._connection.timeout), "")
        for error in result.errors:
            raise self._connection.error(error)
        return sorted(
            (Listed(row.group_id, _type(row.type), _state(row.state)) for row in result.valid),
            key=lambda row: row.group,
        )

    def describe(self, group: str) -> Group | None:
        futures = self._admin.describe_consumer_groups([group], request_timeout=self._connection.timeout)
        found: Any = self._result(futures[group], group)
        state = _state(found.state)
        if state == "Dead":
            return None
        node = found.coordinator
        members = [
            Member(
                row.member_id,
                row.client_id,
                row.host.lstrip("/"),
                row.group_instance_id or None,
                [(place.topic, place.partition) for place in row.assignment.topic_partitions],
            )
            for row in found.members
        ]
        return Group(group, _type(found.type), state, found.partition_assignor, f"{node.host}:{node.port}", members)

    def offsets(self, group: str) -> dict[Place, Position]:
        request = [self._kafka.ConsumerGroupTopicPartitions(group)]
        futures = self._admin.list_consumer_group_offsets(request, request_timeout=self._connection.timeout)
        found: Any = self._result(futures[group], group)
        return {
            (row.topic, row.partition): Position(row.offset)
            for row in found.topic_partitions
            if row.error is None and row.offset >= 0
        }

    def set_offsets(self, group: str, offsets: Mapping[Place, int]) -> None:
        rows = [self._kafka.TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]
        request = [self._kafka.ConsumerGroupTopicPartitions(group, rows)]
        futures = self._admin.alter_consumer_group_offsets(request, request_timeout=self._connection.timeout)
        found: Any = self._result(futures[group], group)
        for row in found.topic_partitions:
            if row.error is not None:
                raise group_refusal(group, row.error.name(), f"{row.topic}-{row.partition}: {row.error.str()}")

    def delete(self, group: str) -> None:
        futures = self._admin.delete_consumer_groups([group], request_timeout=self._connection.timeout)
        self._result(futures[group], group)

    def _result(self, future: "Future[T]", group: str) -> T:
        try:
            return future.result(self._connection.timeout + _GRACE_S)
        except self._kafka.KafkaException as error:
            name = error.args[0].name()
            if name in _REFUSALS:
                raise group_refusal(group, name, error.args[0].str()) from error
            raise self._connection.error(error) from error
        except TimeoutError as error:
            raise CommandFailedError(
                f"{self._connection.bootstrap} did not answer in time", exit_codes.TIMED_OUT
            ) from error


def no_such_group(group: str, command: str) -> CommandFailedError:
    return CommandFailedError(
        f"group {group!r} does not exist: `millstream {command} list` shows those that do", exit_codes.NOT_FOUND
    )


def still_active(group: str, state: str, members: int) -> CommandFailedError:
    return CommandFailedError(
        f"group {group!r} is {state.lower()} with {members} member{'' if members == 1 else 's'}:"
        " stop its consumers first, or wait until their session has timed out"
    )


_REFUSALS = frozenset(
    {"NON_EMPTY_GROUP", "UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS", "GROUP_ID_NOT_FOUND", "GROUP_SUBSCRIBED_TO_TOPIC"}
)


def group_refusal(group: str, name: str, text: str) -> CommandFailedError:
    """The broker's answer about a group, as a sentence with the next step."""
    if name in ("NON_EMPTY_GROUP", "UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS", "GROUP_SUBSCRIBED_TO_TOPIC"):
        return CommandFailedError(
            f"group {group!r} is active, and the broker lets nobody else change it ({name}): stop its consumers first"
        )
    if name == "GROUP_ID_NOT_FOUND":
        return CommandFailedError(f"group {group!r} does not exist", exit_codes.NOT_FOUND)
    return CommandFailedError(f"group {group!r}: {text} ({name})")


def _state(state: Any) -> str:
    """As Kafka spells states: PREPARING_REBALANCING is PreparingRebalance."""
    words = str(state.name).replace("REBALANCING", "REBALANCE").split("_")
    return "".join(word.capitalize() for word in words)


def _type(kind: Any) -> str:
    return str(kind.name).lower()
