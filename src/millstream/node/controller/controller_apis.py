"""The APIs that the active controller answers, as three kinds of askers reach them.

A request comes over the controller's own listener, from the broker in this process, or inside an Envelope (58) in which
a broker passes on what a client asked of it. A handler that cannot do anything raises KafkaError. Over the listener
that becomes an answer which says so; NOT_CONTROLLER inside an Envelope makes the Envelope's error, so that the broker
asks the next controller and its client notices nothing.
"""

from collections.abc import Awaitable, Mapping, Sequence

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.messages import request_schema
from millstream.formats.protocol.primitives import MalformedMessage
from millstream.formats.protocol.schema import Message
from millstream.node.controller.active_controller import ActiveController
from millstream.node.controller.refusals import refuse
from millstream.node.server.embedded import read_body, read_head, write_answer
from millstream.node.server.request import Api, Context, Handler, Response, api
from millstream.node.server.service import Peer
from millstream.node.server.splitting import respond
from millstream.node.server.turnstile import Turnstile

FORWARDED_APIS = (
    "create_topics",
    "delete_topics",
    "create_partitions",
    "alter_configs",
    "incremental_alter_configs",
    "elect_leaders",
    "alter_partition_reassignments",
    "list_partition_reassignments",
    "update_features",
    "unregister_broker",
    "describe_quorum",
    "add_raft_voter",
    "remove_raft_voter",
)
"""What clients may ask of any broker, which passes it on."""


class ControllerApis:
    def __init__(
        self, controller: ActiveController, handlers: Mapping[str, Handler], others: Sequence[Api] = ()
    ) -> None:
        """`others` are the APIs of the quorum, which the same listener answers."""
        self._controller = controller
        self._turnstile = Turnstile()
        self._own = dict(handlers)
        self._others = tuple(others)
        self._handlers = self._own | {each.name: each.handler for each in others if each.handler is not None}
        self._forwarded = {request_schema(name).api_key: name for name in FORWARDED_APIS if name in self._handlers}

    @property
    def is_active(self) -> bool:
        return self._controller.is_active

    def offers(self, name: str) -> bool:
        return name in self._handlers

    async def call(self, name: str, request: Message, context: Context) -> Response:
        """Answers a request, or raises KafkaError when nothing of it could be done."""
        answer = respond(name, self._handlers[name], request, context, self._turnstile)
        return await answer if isinstance(answer, Awaitable) else answer

    def table(self) -> list[Api]:
        """For the dispatcher of the controller's listener."""
        own = [api(name, self._refusing(name)) for name in self._own]
        return [*own, *self._others, api("envelope", self.envelope)]

    def _refusing(self, name: str) -> Handler:
        async def answer(request: Message, context: Context) -> Response:
            try:
                return await self.call(name, request, context)
            except KafkaError as error:
                return refuse(name, request, error)

        return answer

    async def envelope(self, request: Message, context: Context) -> Response:
        """Envelope (58): the answer to the request inside, or NOT_CONTROLLER."""
        if not self.is_active:
            return {"error_code": ErrorCode.NOT_CONTROLLER}
        try:
            head = read_head(request.request_data)
            name = self._forwarded.get(head.api_key)
            if name is None:
                return {"error_code": ErrorCode.INVALID_REQUEST}
            versions = request_schema(name).versions
            if head.version not in versions:
                return {"error_code": ErrorCode.UNSUPPORTED_VERSION}
            inner = await read_body(name, request.request_data, head, self._turnstile)
        except MalformedMessage:
            return {"error_code": ErrorCode.INVALID_REQUEST}
        peer = Peer(host=_host(request.client_host_address), port=0, listener=context.peer.listener)
        try:
            answer = await self.call(name, inner, Context(head.version, head.client_id, peer))
        except KafkaError as error:
            if error.code == ErrorCode.NOT_CONTROLLER:
                return {"error_code": ErrorCode.NOT_CONTROLLER}
            answer = refuse(name, inner, error)
        return {"response_data": await write_answer(name, answer, head, self._turnstile)}


def _host(address: bytes) -> str:
    """An address as four or sixteen bytes, in words."""
    if len(address) == 4:
        return ".".join(str(byte) for byte in address)
    if len(address) == 16:
        return ":".join(address[at : at + 2].hex() for at in range(0, 16, 2))
    return "unknown"
