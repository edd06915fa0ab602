"""Envelopes: from brokers alone, and with a principal that can be read."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from millstream.formats.model.access_control import Principal
from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import request_schema, response_schema
from millstream.node.controller.active_controller import ActiveController
from millstream.node.controller.controller_apis import ControllerApis
from millstream.node.metadata.image import MetadataImage
from millstream.node.security.authorizer import StandardAuthorizer
from millstream.node.security.core.acls import AuthorizerSettings
from millstream.node.security.guards import Checks
from millstream.node.server.envelope import response_body
from millstream.node.server.principal_codec import address_bytes, encode_principal
from millstream.node.server.request import Context
from millstream.node.server.service import Peer

BROKER, CLIENT = Principal("User", "broker"), Principal("User", "alice")
VERSION = 7


def apis() -> ControllerApis:
    async def create_topics(request: Any, context: Context) -> dict[str, Any]:
        return {"topics": [{"name": row.name, "error_code": 0} for row in request.topics]}

    checks = Checks(StandardAuthorizer(AuthorizerSettings(frozenset({BROKER}))), MetadataImage)
    controller = cast(ActiveController, SimpleNamespace(is_active=True))
    return ControllerApis(controller, {"create_topics": create_topics}, (), checks)


def send(sender: Principal, principal: bytes | None) -> Any:
    handler = next(each.handler for each in apis().table() if each.name == "envelope")
    assert handler is not None
    body = request_schema("create_topics").encode(
        {"topics": [{"name": "t", "assignments": [], "configs": []}]}, VERSION
    )
    frame = b"\0\x13\0\x07\0\0\0\x01\0\0\0" + body
    request = SimpleNamespace(
        request_data=frame, request_principal=principal, client_host_address=address_bytes("10.0.0.1")
    )
    context = Context(0, "", Peer("10.0.0.9", 1, "CONTROLLER", principal=sender))

    async def run() -> Any:
        given = handler(request, context)
        return await given if asyncio.iscoroutine(given) else given

    return asyncio.run(run())


def inner(response: Any) -> int:
    body = response_body("create_topics", response["response_data"], VERSION)
    return int(response_schema("create_topics").decode(body, VERSION).topics[0].error_code)


def of(principal: Principal) -> bytes:
    return encode_principal(Peer("h", 1, "L", principal=principal))


def test_envelope_of_a_client_is_refused() -> None:
    assert send(CLIENT, of(BROKER))["error_code"] == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_request_inside_is_authorized_as_its_client() -> None:
    assert inner(send(BROKER, of(CLIENT))) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert inner(send(BROKER, of(BROKER))) == ErrorCode.NONE


def test_principal_that_cannot_be_read() -> None:
    for principal in (None, b"", b"\0\0", b"\0\1\5User\4bob\0\0"):
        assert send(BROKER, principal)["error_code"] == ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE
