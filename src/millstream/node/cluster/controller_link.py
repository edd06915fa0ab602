"""Requests to the active controller: in this process if it is here, over the network otherwise, with retries.

The leader of the quorum changes sometimes. A request that finds no leader, a broken connection or a former leader is
sent again as soon as another leader is known. The caller gets one response, or REQUEST_TIMED_OUT. A request may be
executed twice: as in Kafka, a client that creates a topic can get the error that it exists, because the first attempt
created it.

Requests of clients that only the active controller can serve are forwarded to it in an Envelope.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from millstream.formats.model.access_control import CLUSTER_NAME, AclOperation, AclResourceType
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicId, TopicName
from millstream.formats.protocol.primitives import MalformedMessage
from millstream.formats.protocol.schema import Message, request_schema, response_schema
from millstream.node.controller.active_controller import ImageSource, Leadership
from millstream.node.controller.controller_apis import FORWARDED_APIS, error_response, has_error
from millstream.node.controller.loggers import alter_logger_rows
from millstream.node.environment import Environment
from millstream.node.metadata.image import MetadataDelta
from millstream.node.metadata.records import MetadataRecord
from millstream.node.metadata.topics import NewTopic, TopicCreation
from millstream.node.server.authorization import NO_AUTHORIZER, Authorizer
from millstream.node.server.channel import Channel
from millstream.node.server.envelope import response_body
from millstream.node.server.principal_codec import address_bytes, encode_principal
from millstream.node.server.request import Api, Context, Response, api
from millstream.node.server.service import LOCAL_LISTENER, Peer

DEFAULT_TIMEOUT_SECONDS = 30.0
_MIN_RETRY_PAUSE_SECONDS = 0.02
_MAX_RETRY_PAUSE_SECONDS = 0.5
_LEADER_CHANGE_GRACE_SECONDS = 2.5
"""After a change of the leader, how long the response of the former controller is awaited. The next controller might
respond to the repeated request that the topic exists already."""
_VISIBLE_TIMEOUT_SECONDS = 2.0
"""The maximum wait until a created topic is in this node's metadata."""

T = TypeVar("T")


class LocalController(Protocol):
    """The controller role of this process."""

    @property
    def is_active(self) -> bool: ...

    def offers(self, name: str) -> bool: ...

    async def call(self, name: str, request: Message, context: Context) -> Response: ...


class ControllerLink:
    """Sends requests to the active controller, wherever it is."""

    def __init__(
        self,
        leadership: Leadership,
        local: LocalController | None,
        source: ImageSource,
        environment: Environment,
        *,
        client_id: str,
    ) -> None:
        """`local` is None on a node without the controller role."""
        self._leadership = leadership
        self._local = local
        self._source = source
        self._environment = environment
        self._client_id = client_id
        self._peer = Peer(host="local", port=0, listener=LOCAL_LISTENER, is_node=True)
        self.check_settings: Callable[[str, Message], Awaitable[None]] = _accept_all
        """Checks a change of settings on this node before it is forwarded. KafkaError refuses it."""
        self._channel: Channel | None = None
        self._leader_change: asyncio.Future[None] | None = None
        self._metadata_change: asyncio.Future[None] | None = None
        source.subscribe(self._follow)

    def leader_changed(self) -> None:
        """Called when another leader is known, or when the controller of this node becomes active."""
        leader_change, self._leader_change = self._leader_change, None
        if leader_change is not None and not leader_change.done():
            leader_change.set_result(None)

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    # Requests of this node

    async def request(
        self, api: str, fields: Mapping[str, Any], *, timeout_s: float = DEFAULT_TIMEOUT_SECONDS
    ) -> Message:
        """The active controller's response; REQUEST_TIMED_OUT if there is none in time."""

        async def local(controller: LocalController) -> Message:
            return await self._request_locally(controller, api, fields)

        async def remote(channel: Channel, left_s: float) -> Message:
            response = await channel.request(api, fields, timeout_s=left_s)
            if has_error(response, ErrorCode.NOT_CONTROLLER):
                raise KafkaError(ErrorCode.NOT_CONTROLLER, f"{channel.host}:{channel.port} is not the controller")
            return response

        grace_s = _LEADER_CHANGE_GRACE_SECONDS if api == "create_topics" else 0.0
        return await self._until_response(api, local, remote, timeout_s, grace_s)

    async def _request_locally(self, controller: LocalController, api: str, fields: Mapping[str, Any]) -> Message:
        schema, responses = request_schema(api), response_schema(api)
        version = schema.versions.high
        request = schema.decode(schema.encode(fields, version), version)
        try:
            response = await controller.call(api, request, Context(version, self._client_id, self._peer))
        except KafkaError as error:
            if error.code == ErrorCode.NOT_CONTROLLER:
                raise
            response = error_response(api, request, error)
        assert isinstance(response, Mapping)
        return responses.decode(responses.encode(response, version), version)

    async def create_topics(
        self, topics: Sequence[NewTopic], *, timeout_s: float = DEFAULT_TIMEOUT_SECONDS
    ) -> list[TopicCreation]:
        """Creates topics, and waits until they are in this node's metadata."""
        fields = {
            "topics": [
                {
                    "name": topic.name,
                    "num_partitions": topic.partition_count,
                    "replication_factor": topic.replication_factor,
                    "assignments": [
                        {"partition_index": number, "broker_ids": list(replicas)}
                        for number, replicas in topic.assignments
                    ],
                    "configs": [{"name": name, "value": value} for name, value in topic.configs.items()],
                }
                for topic in topics
            ],
            "timeout_ms": int(timeout_s * 1000),
        }
        response = await self.request("create_topics", fields, timeout_s=timeout_s)
        existing = [
            row.name for row in response.topics if row.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
        ]
        await self._until_visible(existing)
        return [
            TopicCreation(
                name=row.name,
                topic_id=TopicId(row.topic_id),
                partition_count=row.num_partitions,
                replication_factor=row.replication_factor,
                error=ErrorCode(row.error_code),
                message=row.error_message,
            )
            for row in response.topics
        ]

    async def _until_visible(self, names: Sequence[str]) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_VISIBLE_TIMEOUT_SECONDS):
                while not all(TopicName(name) in self._source.image.topics for name in names):
                    if self._metadata_change is None:
                        self._metadata_change = self._environment.loop.create_future()
                    await asyncio.shield(self._metadata_change)

    def _follow(self, delta: MetadataDelta) -> None:
        change, self._metadata_change = self._metadata_change, None
        if change is not None:
            change.set_result(None)

    # Forwarded requests of clients

    async def forward(self, api: str, request: Message, context: Context, *, timeout_s: float) -> Response:
        """The active controller's response to a client's request."""
        envelope = {
            "request_data": context.frame,
            "request_principal": encode_principal(context.peer),
            "client_host_address": address_bytes(context.peer.host),
        }

        async def local(controller: LocalController) -> Response:
            return await controller.call(api, request, context)

        async def remote(channel: Channel, left_s: float) -> Response:
            response = await channel.request("envelope", envelope, timeout_s=left_s)
            if response.error_code:
                raise KafkaError(ErrorCode(response.error_code), f"the controller refused {api}")
            try:
                return response_body(api, response.response_data, context.version)
            except MalformedMessage as error:
                raise ConnectionError(f"the controller's response cannot be decoded: {error}") from None

        return await self._until_response(api, local, remote, timeout_s, _LEADER_CHANGE_GRACE_SECONDS)

    # Finding the controller

    async def _until_response(
        self,
        api: str,
        local: "Callable[[LocalController], Awaitable[T]]",
        remote: "Callable[[Channel, float], Awaitable[T]]",
        timeout_s: float,
        grace_s: float,
    ) -> T:
        loop = self._environment.loop
        deadline = loop.time() + timeout_s
        pause_s = _MIN_RETRY_PAUSE_SECONDS
        problem = "no leader is known"
        while (left_s := deadline - loop.time()) > 0:
            leader_change = self._next_leader_change()
            try:
                if self._local is not None and self._local.is_active:
                    if not self._local.offers(api):
                        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"this controller does not offer {api}")
                    return await local(self._local)
                channel = self._channel_to_leader()
                if channel is not None:
                    return await _unless_leader_changes(leader_change, remote(channel, left_s), grace_s)
            except KafkaError as error:
                if error.code != ErrorCode.NOT_CONTROLLER:
                    raise
                problem = error.message
            except _LeaderChanged:
                continue
            except OSError as error:
                problem = str(error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(pause_s, max(0.0, deadline - loop.time()))):
                    await asyncio.shield(leader_change)
            pause_s = min(2 * pause_s, _MAX_RETRY_PAUSE_SECONDS)
        raise KafkaError(
            ErrorCode.REQUEST_TIMED_OUT, f"no response from the active controller within {timeout_s:g} s: {problem}"
        )

    def _next_leader_change(self) -> "asyncio.Future[None]":
        if self._leader_change is None:
            self._leader_change = self._environment.loop.create_future()
        return self._leader_change

    def _channel_to_leader(self) -> Channel | None:
        address = self._leadership.leader_address()
        if address is None:
            return None
        channel = self._channel
        if channel is None or (channel.host, channel.port) != address:
            if channel is not None:
                channel.close()
            environment = self._environment
            channel = Channel(
                *address,
                environment.controller_network,
                environment.loop,
                client_id=self._client_id,
                login=environment.controller_login,
            )
            self._channel = channel
        return channel


class _LeaderChanged(Exception):
    """Another node became leader while the request was pending."""


async def _unless_leader_changes(leader_change: "asyncio.Future[None]", response: Awaitable[T], grace_s: float) -> T:
    """The response; raises _LeaderChanged if the leader changes and no response comes within the grace time."""
    pending = asyncio.ensure_future(response)
    try:
        await asyncio.wait((pending, leader_change), return_when=asyncio.FIRST_COMPLETED)
        if not pending.done() and grace_s > 0:
            await asyncio.wait((pending,), timeout=grace_s)
        if pending.done():
            return pending.result()
        raise _LeaderChanged
    finally:
        pending.cancel()


async def _accept_all(name: str, request: Message) -> None:
    """The check of settings on a node that has none: accepts every change."""


_EARLIER_TIMEOUT_SECONDS = 0.5
"""The broker times out so much earlier than the client, so that the client gets a response."""


_SETTINGS_APIS = ("incremental_alter_configs", "alter_configs")


class Forwarding:
    """The APIs that a broker forwards to the active controller."""

    def __init__(self, link: ControllerLink, node_id: int, authorizer: Authorizer = NO_AUTHORIZER) -> None:
        self._link = link
        self._node_id = node_id
        self._authorizer = authorizer

    def table(self) -> list[Api]:
        return [self._forwarded(name) for name in FORWARDED_APIS]

    def _forwarded(self, name: str) -> Api:
        async def forward(request: Message, context: Context) -> Response:
            try:
                if name in _SETTINGS_APIS and self._may_alter_brokers(context.peer):
                    # Without the permission, the controller refuses it.
                    is_incremental = name == "incremental_alter_configs"
                    if is_incremental and (loggers := alter_logger_rows(request, self._node_id)) is not None:
                        return loggers
                    await self._link.check_settings(name, request)
                return await self._link.forward(name, request, context, timeout_s=_timeout_s(request))
            except KafkaError as error:
                return error_response(name, request, error)

        return api(name, forward, with_frame=True)

    def _may_alter_brokers(self, peer: Peer) -> bool:
        """Whether the client may change settings of brokers. The check of settings opens files that the client names.
        It is left out for other clients, which the controller refuses."""
        return self._authorizer.sees(peer, AclOperation.ALTER_CONFIGS, AclResourceType.CLUSTER, CLUSTER_NAME)


def _timeout_s(request: Message) -> float:
    timeout_ms = getattr(request, "timeout_ms", 0)
    if timeout_ms <= 0:
        return DEFAULT_TIMEOUT_SECONDS
    return min(DEFAULT_TIMEOUT_SECONDS, max(timeout_ms / 1000 - _EARLIER_TIMEOUT_SECONDS, 1.0))


class LeaderChanges:
    """Calls its subscribers when the leader of the quorum changes.

    It is subscribed to the quorum after the controller, so that the controller is active before the subscribers are
    called.
    """

    def __init__(self) -> None:
        self._subscribers: list[Callable[[], None]] = []

    def subscribe(self, on_change: Callable[[], None]) -> None:
        self._subscribers.append(on_change)

    def leader_changed(self, leader_id: int | None, epoch: int) -> None:
        self._notify()

    def leading(self, epoch: int) -> None:
        self._notify()

    def no_longer_leading(self) -> None:
        self._notify()

    def committed(self, records: Sequence[MetadataRecord], *, offset: int, epoch: int) -> None:
        return

    def reset(self, image_records: Sequence[MetadataRecord], *, offset: int, epoch: int) -> None:
        return

    def _notify(self) -> None:
        for on_change in self._subscribers:
            on_change()
