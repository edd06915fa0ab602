"""The APIs of the active controller, and their error responses.

A request comes over the controller's listener, from the broker in this process, or inside an Envelope (58) in which a
broker forwards a client's request. A handler raises KafkaError if nothing was done. Over the listener this becomes an
error response, with the error in each field that the response has for it. NOT_CONTROLLER inside an Envelope becomes the
Envelope's error, so that the broker sends the request to the next controller and the client does not notice.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.primitives import MalformedMessage
from millstream.formats.protocol.schema import Message, request_schema, response_schema
from millstream.formats.protocol.wire_types import EnvelopeRequest, EnvelopeResponse
from millstream.node.controller.active_controller import ActiveController
from millstream.node.security.api_checks import guard_handler, guarded
from millstream.node.security.guards import Checks
from millstream.node.server.envelope import read_body, read_head, write_response
from millstream.node.server.long_requests import Turnstile, respond
from millstream.node.server.principal_codec import address_text, decode_principal
from millstream.node.server.request import Api, Context, Handler, Response, api
from millstream.node.server.service import Peer


def error_response(api: str, request: Message, error: KafkaError) -> Response:
    """The response to a request that failed as a whole."""
    fields = {"error_code": error.code, "error_message": error.message}
    with_rows = _ERROR_RESPONSES.get(api)
    if with_rows is not None:
        return with_rows(request, fields)
    known = response_schema(api).root.new().__slots__
    return {name: value for name, value in fields.items() if name in known}


def _create_topics_errors(request: Message, error: dict[str, Any]) -> Response:
    return {"topics": [{"name": topic.name, **error} for topic in request.topics]}


def _delete_topics_errors(request: Message, error: dict[str, Any]) -> Response:
    rows = [{"name": topic.name, "topic_id": topic.topic_id, **error} for topic in request.topics]
    return {"responses": rows + [{"name": name, **error} for name in request.topic_names]}


def _create_partitions_errors(request: Message, error: dict[str, Any]) -> Response:
    return {"results": [{"name": topic.name, **error} for topic in request.topics]}


def _alter_configs_errors(request: Message, error: dict[str, Any]) -> Response:
    rows = [{"resource_type": each.resource_type, "resource_name": each.resource_name} for each in request.resources]
    return {"responses": [{**row, **error} for row in rows]}


def _alter_reassignments_errors(request: Message, error: dict[str, Any]) -> Response:
    return {**error, "responses": []}


def _elect_leaders_errors(request: Message, error: dict[str, Any]) -> Response:
    """Version 0 has no top-level error, so each partition gets the error."""
    return {
        "error_code": error["error_code"],
        "replica_election_results": [
            {
                "topic": topic.topic,
                "partition_result": [{"partition_id": number, **error} for number in topic.partitions],
            }
            for topic in request.topic_partitions or ()
        ],
    }


def _update_features_errors(request: Message, error: dict[str, Any]) -> Response:
    return {**error, "results": [{"feature": update.feature, **error} for update in request.feature_updates]}


def _create_acls_errors(request: Message, error: dict[str, Any]) -> Response:
    return {"results": [error for _ in request.creations]}


def _delete_acls_errors(request: Message, error: dict[str, Any]) -> Response:
    return {"filter_results": [{**error, "matching_acls": []} for _ in request.filters]}


def _alter_scram_users_errors(request: Message, error: dict[str, Any]) -> Response:
    users = dict.fromkeys(row.name for row in (*request.deletions, *request.upsertions))
    return {"results": [{"user": user, **error} for user in users]}


def _alter_client_quotas_errors(request: Message, error: dict[str, Any]) -> Response:
    return {
        "entries": [
            {
                **error,
                "entity": [{"entity_type": part.entity_type, "entity_name": part.entity_name} for part in entry.entity],
            }
            for entry in request.entries
        ]
    }


_ERROR_RESPONSES: dict[str, Callable[[Message, dict[str, Any]], Response]] = {
    "create_topics": _create_topics_errors,
    "delete_topics": _delete_topics_errors,
    "create_partitions": _create_partitions_errors,
    "alter_configs": _alter_configs_errors,
    "incremental_alter_configs": _alter_configs_errors,
    "alter_partition_reassignments": _alter_reassignments_errors,
    "elect_leaders": _elect_leaders_errors,
    "update_features": _update_features_errors,
    "create_acls": _create_acls_errors,
    "delete_acls": _delete_acls_errors,
    "alter_user_scram_credentials": _alter_scram_users_errors,
    "alter_client_quotas": _alter_client_quotas_errors,
}
"""By API: the response with the error in each row of the request. Other APIs have only the error of the whole request.
"""


def has_error(response: Message, code: int) -> bool:
    """Whether the response, or a row of it, has the error code."""
    fields = [getattr(response, name) for name in response.__slots__]
    if getattr(response, "error_code", 0) == code:
        return True
    return any(
        isinstance(rows, list) and any(isinstance(row, Message) and has_error(row, code) for row in rows)
        for rows in fields
    )


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
    "create_acls",
    "delete_acls",
    "alter_user_scram_credentials",
    "create_delegation_token",
    "renew_delegation_token",
    "expire_delegation_token",
    "alter_client_quotas",
)
"""The APIs that clients may send to any broker, which forwards them to the active controller."""


class ControllerApis:
    """The handlers of the controller by API, for its listener, its own broker and forwarded requests."""

    def __init__(
        self,
        controller: ActiveController,
        handlers: Mapping[str, Handler],
        others: Sequence[Api] = (),
        checks: Checks | None = None,
    ) -> None:
        """`others` are the APIs of the quorum, which the same listener serves. `checks` are those of the authorizer."""
        self._controller = controller
        self._checks = checks
        self._turnstile = Turnstile()
        self._own = (
            dict(handlers)
            if checks is None
            else {name: guard_handler(name, handler, checks) for name, handler in handlers.items()}
        )
        self._others = tuple(guarded(others, checks))
        self._handlers = self._own | {each.name: each.handler for each in self._others if each.handler is not None}
        self._forwarded = {request_schema(name).api_key: name for name in FORWARDED_APIS if name in self._handlers}

    @property
    def is_active(self) -> bool:
        return self._controller.is_active

    def offers(self, name: str) -> bool:
        return name in self._handlers

    async def call(self, name: str, request: Message, context: Context) -> Response:
        """The response to a request; raises KafkaError if nothing was done."""
        response = respond(name, self._handlers[name], request, context, self._turnstile)
        return await response if isinstance(response, Awaitable) else response

    def table(self) -> list[Api]:
        """The APIs of the controller's listener."""
        own = [api(name, self._with_error_response(name)) for name in self._own]
        return [*own, *self._others, *guarded([api("envelope", self.envelope)], self._checks)]

    def _with_error_response(self, name: str) -> Handler:
        async def response(request: Message, context: Context) -> Response:
            try:
                return await self.call(name, request, context)
            except KafkaError as error:
                return error_response(name, request, error)

        return response

    async def envelope(self, request: EnvelopeRequest, context: Context) -> EnvelopeResponse:
        """Envelope (58): the response to the request inside, or NOT_CONTROLLER."""
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
        try:
            peer = self._client(request, context.peer.listener)
        except ValueError:
            return {"error_code": ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE}
        try:
            response = await self.call(name, inner, Context(head.version, head.client_id, peer, is_forwarded=True))
        except KafkaError as error:
            if error.code == ErrorCode.NOT_CONTROLLER:
                return {"error_code": ErrorCode.NOT_CONTROLLER}
            response = error_response(name, inner, error)
        return {"response_data": await write_response(name, response, head, self._turnstile)}

    def _client(self, request: EnvelopeRequest, listener: str) -> Peer:
        """The client of a forwarded request. ValueError if its principal cannot be read, or is needed and missing."""
        peer = Peer(host=address_text(request.client_host_address), port=0, listener=listener)
        if request.request_principal:
            peer.principal, peer.token_authenticated, peer.groups = decode_principal(request.request_principal)
        elif self._checks is not None:
            raise ValueError("an Envelope without a principal")
        return peer
