"""Metadata (3), DescribeCluster (60), DescribeTopicPartitions (75), FindCoordinator (10).

Responses come from the metadata image alone. Encoded Metadata responses are cached until the image changes: with
thousands of partitions, encoding is expensive, and clients repeat the request.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import Any
from uuid import UUID

from millstream.formats.model.access_control import CLUSTER_NAME, AclOperation, AclResourceType
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import NO_TOPIC_ID, BrokerId, TopicId, TopicName
from millstream.formats.protocol.schema import response_schema
from millstream.formats.protocol.steps import write_in_steps
from millstream.formats.protocol.wire_types import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataRequestTopics,
)
from millstream.node.cluster.cluster_view import LostBrokers
from millstream.node.coordination.runtime import java_hash
from millstream.node.metadata.image import BrokerRegistration, MetadataImage, PartitionState, TopicImage
from millstream.node.metadata.records import NO_LEADER, Endpoint
from millstream.node.metadata.topic_names import (
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from millstream.node.server.authorization import NO_AUTHORIZER, Authorizer
from millstream.node.server.long_requests import Turnstile
from millstream.node.server.request import Context, Response
from millstream.node.server.service import Peer, Refused

_KEPT_RESPONSES = 64
_MAX_TOPICS_OF_KEPT_REQUEST = 100
"""The maximum number of topics in a request whose response is cached. Larger requests are rarely repeated."""
MOST_TOPICS = 20_000
"""The maximum number of names in one Metadata request: each takes time on the event loop."""
_TOPICS_PER_TURN = 200
_Making = Generator[None, None, dict[str, Any]]
_NAMES = 3
"""The index of the topic names in the key of a cached response."""
_SOON_SECONDS = 0.003
"""The approximate time until the kernel has closed all connections of a killed process."""
_GROUP, _TRANSACTION, _SHARE = 0, 1, 2
_FIRST_WITH_KEYS = 4
"""FindCoordinator with several keys in one request."""
_FIRST_WITH_SHARE = 6
_STATE_TOPICS = {_GROUP: CONSUMER_OFFSETS_TOPIC, _TRANSACTION: TRANSACTION_STATE_TOPIC, _SHARE: SHARE_GROUP_STATE_TOPIC}
"""The topic with the state of each coordinator type."""
_NOT_REQUESTED = -(1 << 31)
_FIRST_WITHOUT_NAME = 12
"""The first version in which the name of a topic may be null."""
_BROKER_ENDPOINTS, _CONTROLLER_ENDPOINTS = 1, 2


class ClusterHandlers:
    def __init__(
        self,
        node_id: int,
        image: Callable[[], MetadataImage],
        lost_brokers: LostBrokers,
        create_topics: Callable[[list[str], Peer], Awaitable[dict[str, KafkaError]]],
        may_create_topics: Callable[[], bool],
        described_partitions_limit: int,
        ensure_group_topic: Callable[[], Awaitable[None]],
        ensure_share_topic: Callable[[], Awaitable[None]],
        ensure_transaction_topic: Callable[[], Awaitable[None]],
        authorizer: Authorizer = NO_AUTHORIZER,
    ) -> None:
        """`create_topics` creates topics with default settings and returns the errors by name."""
        self._authorizer = authorizer
        self._node_id = node_id
        self._image = image
        self._lost_brokers = lost_brokers
        self._create_topics = create_topics
        self._may_create_topics = may_create_topics
        self._ensure_topic = {
            _GROUP: ensure_group_topic,
            _TRANSACTION: ensure_transaction_topic,
            _SHARE: ensure_share_topic,
        }
        self._described_partitions_limit = described_partitions_limit
        self._kept: dict[object, bytes] = {}
        self._kept_for: MetadataImage | None = None
        self._under_way: dict[object, asyncio.Future[bytes]] = {}
        self._turnstile = Turnstile()

    # Metadata

    def metadata(self, request: MetadataRequest, context: Context) -> Response | Awaitable[Response]:
        image = self._image()
        if request.topics and len(request.topics) > MOST_TOPICS:
            raise Refused(f"metadata of {len(request.topics)} topics by name; the limit is {MOST_TOPICS}: request all")
        # In version 0 an empty list means all topics; later, null does.
        wanted = _once_each(request.topics) if request.topics or context.version > 0 else None
        if wanted is not None and request.allow_auto_topic_creation and self._may_create_topics():
            missing = [topic.name for topic in wanted if topic.name is not None and topic.name not in image.topics]
            if missing and self._authorizer.is_enabled:
                return self._metadata_if_allowed(request, context, wanted, missing)
            if missing:
                return self._metadata_creating(request, context, wanted, missing, {})
        if wanted and len(image.brokers) > 1:
            return self._metadata_soon(request, context, wanted)
        return self._encoded(request, context, wanted, {})

    async def _metadata_soon(
        self, request: MetadataRequest, context: Context, wanted: list[MetadataRequestTopics]
    ) -> Response:
        """Waits a moment: a client may notice the failure of a leader before this broker does."""
        await asyncio.sleep(_SOON_SECONDS)
        return await self._awaited(self._encoded(request, context, wanted, {}))

    def _metadata_if_allowed(
        self, request: MetadataRequest, context: Context, wanted: list[MetadataRequestTopics], missing: list[str]
    ) -> "Response | Awaitable[Response]":
        """Creates the topics that the client may describe and create. DESCRIBE comes first, as in Kafka."""
        allows, peer = self._authorizer.allows, context.peer
        described = [name for name in missing if self._may_describe(context, name)]
        may_create_all = bool(described) and self._authorizer.sees(
            peer, AclOperation.CREATE, AclResourceType.CLUSTER, CLUSTER_NAME
        )
        created = [
            name
            for name in described
            if may_create_all or allows(peer, AclOperation.CREATE, AclResourceType.TOPIC, name)
        ]
        refused = {
            name: KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "the client may not create topics")
            for name in described
            if name not in created
        }
        if created:
            return self._metadata_creating(request, context, wanted, created, refused)
        return self._encoded(request, context, wanted, refused)

    def _sees(self, context: Context, name: str) -> bool:
        """For lists of all topics: what the client may not describe is not in them, and that is no refusal."""
        return self._authorizer.sees(context.peer, AclOperation.DESCRIBE, AclResourceType.TOPIC, name)

    def _may_describe(self, context: Context, name: str) -> bool:
        return self._authorizer.allows(context.peer, AclOperation.DESCRIBE, AclResourceType.TOPIC, name)

    async def _metadata_creating(
        self,
        request: MetadataRequest,
        context: Context,
        wanted: list[MetadataRequestTopics],
        missing: list[str],
        failed: dict[str, KafkaError],
    ) -> Response:
        # Internal topics have their own settings, and are created when they are needed.
        failed = failed | await self._create_topics(
            [name for name in missing if name not in INTERNAL_TOPICS], context.peer
        )
        for key_type in (_GROUP, _TRANSACTION):
            name = _STATE_TOPICS[key_type]
            if name in missing:
                try:
                    await self._ensure_topic[key_type]()
                except KafkaError as error:
                    failed = {**failed, name: error}
        return await self._awaited(self._encoded(request, context, wanted, failed))

    @staticmethod
    async def _awaited(encoded: "bytes | Awaitable[bytes]") -> bytes:
        return encoded if isinstance(encoded, bytes) else await encoded

    def _encoded(
        self,
        request: MetadataRequest,
        context: Context,
        wanted: list[MetadataRequestTopics] | None,
        failed: dict[str, KafkaError],
    ) -> "bytes | Awaitable[bytes]":
        image = self._image()
        if image is not self._kept_for:
            self._kept.clear()
            self._under_way.clear()
            self._kept_for = image
        operations = (request.include_topic_authorized_operations, request.include_cluster_authorized_operations)
        names = None if wanted is None else tuple((topic.name, topic.topic_id) for topic in wanted)
        # A request for all topics, or for none, shows the cluster as it is.
        lost = self._lost_brokers.missing(), self._lost_brokers.departed() if wanted else frozenset[int]()
        rights = self._authorizer.rights(context.peer)
        key = (context.version, context.peer.listener, operations, names, lost, rights)
        encoded = self._kept.get(key)
        if encoded is not None and not failed:
            return encoded
        making = self._metadata(image, wanted, context, operations, failed, lost)
        if len(image.topics if wanted is None else wanted) > _TOPICS_PER_TURN:
            return self._encoded_in_turns(making, context.version, image, None if failed else key)
        encoded = response_schema("metadata").encode(_all_at_once(making), context.version)
        if not failed:
            self._keep(key, encoded)
        return encoded

    async def _encoded_in_turns(
        self, making: _Making, version: int, image: MetadataImage, key: tuple[Any, ...] | None
    ) -> bytes:
        """Concurrent requests with the same key share one response."""
        if key is None or image is not self._kept_for:
            return await self._made_in_turns(making, version)
        under_way = self._under_way.get(key)
        if under_way is None:
            under_way = self._under_way[key] = asyncio.ensure_future(self._made_in_turns(making, version))
        encoded = await asyncio.shield(under_way)
        if self._under_way.get(key) is under_way:  # otherwise the image has changed, or the response is cached already
            del self._under_way[key]
            self._keep(key, encoded)
        return encoded

    async def _made_in_turns(self, making: _Making, version: int) -> bytes:
        out = bytearray()
        values = await self._turnstile.through(making)
        await self._turnstile.through(write_in_steps(response_schema("metadata"), out, values, version))
        return bytes(out)

    def _keep(self, key: tuple[Any, ...], encoded: bytes) -> None:
        if len(key[_NAMES] or ()) <= _MAX_TOPICS_OF_KEPT_REQUEST:
            if len(self._kept) >= _KEPT_RESPONSES:
                self._kept.clear()
            self._kept[key] = encoded

    def _metadata(
        self,
        image: MetadataImage,
        wanted: list[MetadataRequestTopics] | None,
        context: Context,
        operations: tuple[bool, bool],
        failed: dict[str, KafkaError],
        lost: tuple[frozenset[int], frozenset[int]],
    ) -> _Making:
        """The fields of the response; yields after every _TOPICS_PER_TURN topics."""
        missing, departed = lost
        shows_operations = operations[0]
        is_checked = self._authorizer.is_enabled
        reachable = _Reachable(image, context.peer.listener, missing, departed)
        topics: list[dict[str, Any]] = []
        rows: Iterable[TopicImage | MetadataRequestTopics] = image.topics.values() if wanted is None else wanted
        for number, row in enumerate(rows, 1):
            if isinstance(row, TopicImage):
                if not is_checked or self._sees(context, row.name):
                    may_do = self._topic_operations(context, row.name) if shows_operations else _NOT_REQUESTED
                    topics.append(_topic(row, reachable, may_do))
            elif is_checked and (refused := self._refused_topic(row, image, context)) is not None:
                topics.append(refused)
            else:
                name = _name_of(row, image)
                may_do = self._topic_operations(context, name) if shows_operations and name else _NOT_REQUESTED
                topics.append(_wanted_topic(row, image, reachable, may_do, failed, context.version))
            if topics and not topics[-1].get("error_code"):
                self._show_branch(topics[-1], image, context)
            if number % _TOPICS_PER_TURN == 0:
                yield
        return {
            "brokers": [
                {"node_id": broker.id, "host": at.host, "port": at.port, "rack": broker.rack}
                for broker, at in reachable.listed
            ],
            "cluster_id": image.cluster_id,
            "controller_id": self._some_broker(reachable),
            "topics": topics,
            "cluster_authorized_operations": self._cluster_operations(context) if operations[1] else _NOT_REQUESTED,
        }

    def _show_branch(self, row: dict[str, Any], image: MetadataImage, context: Context) -> None:
        """Adds the parent of a branch. A client that may not describe the parent does not get its name."""
        topic = image.topics_by_id.get(row["topic_id"])
        if topic is None or topic.branch is None:
            return
        row["branch_offsets"] = topic.branch.offsets
        if not self._authorizer.is_enabled or self._sees(context, topic.branch.parent):
            row["branch_of"], row["branch_of_id"] = topic.branch.parent, topic.branch.parent_id

    def _refused_topic(
        self, row: MetadataRequestTopics, image: MetadataImage, context: Context
    ) -> dict[str, Any] | None:
        """The row of a topic that the client may not describe: no name for an id, no id for a name."""
        name = _name_of(row, image)
        if name is None or self._may_describe(context, name):
            return None
        by_id = row.name is None
        return {
            "error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            "name": None if by_id and context.version >= _FIRST_WITHOUT_NAME else "" if by_id else name,
            "topic_id": row.topic_id,
            "is_internal": not by_id and name in INTERNAL_TOPICS,
            "partitions": [],
        }

    def _topic_operations(self, context: Context, name: str) -> int:
        return self._authorizer.operations(context.peer, AclResourceType.TOPIC, name)

    def _cluster_operations(self, context: Context) -> int:
        return self._authorizer.operations(context.peer, AclResourceType.CLUSTER, CLUSTER_NAME)

    def _some_broker(self, reachable: "_Reachable") -> int:
        """The controller id for clients: a broker, as in Kafka, because every broker forwards requests."""
        if self._node_id in reachable.ids:
            return self._node_id
        return reachable.brokers[0][0].id if reachable.brokers else -1

    # DescribeCluster

    def describe_cluster(self, request: DescribeClusterRequest, context: Context) -> Response:
        image = self._image()
        if request.endpoint_type != _BROKER_ENDPOINTS:
            code = (
                ErrorCode.MISMATCHED_ENDPOINT_TYPE
                if request.endpoint_type == _CONTROLLER_ENDPOINTS
                else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
            )
            return {
                "error_code": code,
                "error_message": "this is a broker's listener: request broker endpoints",
                "cluster_id": image.cluster_id,
            }
        reachable = _Reachable(image, context.peer.listener)
        fenced = [
            (broker, at)
            for broker in image.brokers.values()
            if broker.fenced and (at := _endpoint(broker, context.peer.listener)) is not None
        ]
        shown = sorted([*reachable.brokers, *fenced], key=lambda row: row[0].id)
        return {
            "cluster_id": image.cluster_id,
            "controller_id": self._some_broker(reachable),
            "brokers": [
                {
                    "broker_id": broker.id,
                    "host": at.host,
                    "port": at.port,
                    "rack": broker.rack,
                    "is_fenced": broker.fenced,
                    "machine_id": broker.machine_id,
                }
                for broker, at in (shown if request.include_fenced_brokers else reachable.brokers)
            ],
            "cluster_authorized_operations": (
                self._cluster_operations(context) if request.include_cluster_authorized_operations else _NOT_REQUESTED
            ),
        }

    # DescribeTopicPartitions

    def describe_topic_partitions(self, request: DescribeTopicPartitionsRequest, context: Context) -> Response:
        image = self._image()
        reachable = _Reachable(image, context.peer.listener)
        names = sorted({topic.name for topic in request.topics}) if request.topics else sorted(image.topics)
        hidden: list[dict[str, Any]] = []
        if self._authorizer.is_enabled:
            may_describe = self._may_describe if request.topics else self._sees
            allowed = [name for name in names if may_describe(context, name)]
            if request.topics:
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                hidden = [{"error_code": code, "name": name} for name in names if name not in set(allowed)]
            names = allowed
        first_partition = 0
        if request.cursor is not None:
            if request.cursor.partition_index < 0:
                names = []
            names = [name for name in names if name >= request.cursor.topic_name]
            if names and names[0] == request.cursor.topic_name:
                first_partition = request.cursor.partition_index
        left = max(1, min(request.response_partition_limit, self._described_partitions_limit))
        topics: list[dict[str, Any]] = []
        for name in names:
            topic = image.topics.get(TopicName(name))
            if topic is None:
                topics.append({"error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "name": name})
                continue
            if left == 0:
                return {"topics": topics + hidden, "next_cursor": {"topic_name": name, "partition_index": 0}}
            shown = topic.partitions[first_partition : first_partition + left]
            described = _topic(topic, reachable, self._topic_operations(context, name))
            described["partitions"] = [
                {
                    **_partition(first_partition + at, state, reachable),
                    "eligible_leader_replicas": list(state.eligible_leader_replicas),
                    "last_known_elr": list(state.last_known_elr),
                }
                for at, state in enumerate(shown)
            ]
            topics.append(described)
            left -= len(shown)
            following = first_partition + len(shown)
            if following < len(topic.partitions):
                return {"topics": topics + hidden, "next_cursor": {"topic_name": name, "partition_index": following}}
            first_partition = 0
        return {"topics": topics + hidden}

    # FindCoordinator

    async def find_coordinator(self, request: FindCoordinatorRequest, context: Context) -> Response:
        failure: KafkaError | None = None
        if request.key_type in self._ensure_topic:
            try:
                await self._ensure_topic[request.key_type]()
            except KafkaError as error:
                failure = error
        if context.version < _FIRST_WITH_KEYS:
            return self._coordinator(request.key, request.key_type, context, failure)
        return {
            "coordinators": [
                {"key": key, **self._coordinator(key, request.key_type, context, failure)}
                for key in dict.fromkeys(request.coordinator_keys)
            ]
        }

    def _coordinator(self, key: str, key_type: int, context: Context, failure: KafkaError | None) -> dict[str, Any]:
        nowhere = {"node_id": -1, "host": "", "port": -1}
        if key_type == _SHARE and not _is_share_key(key):
            return {
                "error_code": ErrorCode.INVALID_REQUEST,
                "error_message": "the key of a share coordinator must be group:topic id:partition",
                **nowhere,
            }
        if key_type not in _STATE_TOPICS or (key_type == _SHARE and context.version < _FIRST_WITH_SHARE):
            return {
                "error_code": ErrorCode.INVALID_REQUEST,
                "error_message": f"unknown coordinator type {key_type} in version {context.version}",
                **nowhere,
            }
        if failure is not None:
            return {"error_code": failure.code, "error_message": failure.message, **nowhere}
        found = self._coordinator_broker(key, key_type, context.peer.listener)
        if found is None:
            return {
                "error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE,
                "error_message": "the coordinator's partition has no leader; try again",
                **nowhere,
            }
        broker, at = found
        # As in Kafka: versions 1 to 3 have the name of the error also where there is none.
        message = "" if context.version >= _FIRST_WITH_KEYS else "NONE"
        return {"node_id": broker.id, "host": at.host, "port": at.port, "error_message": message}

    def _coordinator_broker(
        self, key: str, key_type: int, listener: str
    ) -> "tuple[BrokerRegistration, Endpoint] | None":
        """The leader of the partition with the key's state."""
        image = self._image()
        topic = image.topics.get(TopicName(_STATE_TOPICS[key_type]))
        if topic is None:
            return None
        leader = topic.partitions[java_hash(key) % len(topic.partitions)].leader
        broker = image.brokers.get(BrokerId(leader))
        at = None if broker is None or broker.fenced else _endpoint(broker, listener)
        return None if broker is None or at is None else (broker, at)


def _name_of(row: MetadataRequestTopics, image: MetadataImage) -> str | None:
    """The name of a requested topic; None for an id that no topic has."""
    if row.name is not None or row.topic_id == NO_TOPIC_ID:
        return row.name
    topic = image.topics_by_id.get(TopicId(row.topic_id))
    return None if topic is None else topic.name


def _all_at_once(making: _Making) -> dict[str, Any]:
    while True:
        try:
            next(making)
        except StopIteration as end:
            made: dict[str, Any] = end.value
            return made


def _is_share_key(key: str) -> bool:
    parts = key.rsplit(":", 2)
    return len(parts) == 3 and all(parts) and parts[2].isascii() and parts[2].isdigit()


def _once_each(topics: list[MetadataRequestTopics] | None) -> list[MetadataRequestTopics] | None:
    """Each topic once, as in Kafka. Otherwise a small request could cause a response of gigabytes."""
    if topics is None:
        return None
    return list({(topic.name, topic.topic_id): topic for topic in topics}.values())


class _Reachable:
    """The brokers that clients of one listener can use: not fenced, and with an address on that listener.

    Missing and departed brokers (see `LostBrokers`) are listed with their address, but are not named as leaders.
    """

    def __init__(
        self,
        image: MetadataImage,
        listener: str,
        missing: frozenset[int] = frozenset(),
        departed: frozenset[int] = frozenset(),
    ) -> None:
        self.listed = [
            (broker, at)
            for _, broker in sorted(image.brokers.items())
            if (not broker.fenced or broker.id in departed) and (at := _endpoint(broker, listener)) is not None
        ]
        self.brokers = [row for row in self.listed if not row[0].fenced]
        self.ids: frozenset[int] = frozenset(broker.id for broker, _ in self.brokers)
        self.alive: frozenset[int] = frozenset(broker.id for broker in image.brokers.values() if not broker.fenced)
        self.missing = missing


def _endpoint(broker: BrokerRegistration, listener: str) -> Endpoint | None:
    """The address of the listener that the client is connected to."""
    return next((each for each in broker.end_points if each.name == listener), None)


def _partition(index: int, state: PartitionState, reachable: _Reachable) -> dict[str, Any]:
    leader, error = state.leader, ErrorCode.NONE
    if leader in reachable.missing:
        leader, error = NO_LEADER, ErrorCode.LEADER_NOT_AVAILABLE
    elif leader not in reachable.ids:
        error = ErrorCode.LISTENER_NOT_FOUND if leader in reachable.alive else ErrorCode.LEADER_NOT_AVAILABLE
        leader = NO_LEADER
    return {
        "error_code": error,
        "partition_index": index,
        "leader_id": leader,
        "leader_epoch": state.leader_epoch,
        "replica_nodes": state.replicas,
        "isr_nodes": state.isr,
        "offline_replicas": [replica for replica in state.replicas if replica not in reachable.ids],
    }


def _topic(topic: TopicImage, reachable: _Reachable, operations: int) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": topic.id,
        "is_internal": topic.name in INTERNAL_TOPICS,
        "partitions": [_partition(index, state, reachable) for index, state in enumerate(topic.partitions)],
        "topic_authorized_operations": operations,
    }


def _wanted_topic(
    wanted: MetadataRequestTopics,
    image: MetadataImage,
    reachable: _Reachable,
    operations: int,
    failed: dict[str, KafkaError],
    version: int,
) -> dict[str, Any]:
    if wanted.name is None and wanted.topic_id != NO_TOPIC_ID:
        topic = image.topics_by_id.get(TopicId(wanted.topic_id))
        if topic is None:
            return _missing(None if version >= 12 else "", ErrorCode.UNKNOWN_TOPIC_ID, wanted.topic_id)
        return _topic(topic, reachable, operations)
    name = wanted.name or ""
    topic = image.topics.get(TopicName(name))
    if topic is not None:
        return _topic(topic, reachable, operations)
    error = failed.get(name)
    if error is not None:
        return _missing(name, error.code)
    return _missing(name, _why_missing(name))


def _why_missing(name: str) -> ErrorCode:
    legal = (
        0 < len(name) <= 249
        and name not in (".", "..")
        and all(c.isascii() and (c.isalnum() or c in "._-") for c in name)
    )
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if legal else ErrorCode.INVALID_TOPIC_EXCEPTION


def _missing(name: str | None, code: int, topic_id: UUID = NO_TOPIC_ID) -> dict[str, Any]:
    return {"error_code": code, "name": name, "topic_id": topic_id, "is_internal": False, "partitions": []}
