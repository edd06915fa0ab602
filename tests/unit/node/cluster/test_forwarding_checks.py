"""What a broker does with a forwarded request before the controller has authorized it."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.formats.model.access_control import Principal
from millstream.formats.protocol.schema import request_schema
from millstream.node.cluster.controller_link import Forwarding
from millstream.node.server.request import Context
from millstream.node.server.service import Peer


@pytest.mark.parametrize("api", ["incremental_alter_configs", "alter_configs"])
@pytest.mark.parametrize(("user", "opened"), [("admin", ["request"]), ("eve", [])])
def test_files_of_settings_are_opened_only_for_those_who_may_change_them(
    user: str, opened: list[str], api: str
) -> None:
    """The request names key stores. Their check opens them: a client without the permission would learn
    which files exist, and could keep the threads of the node busy."""
    checked: list[str] = []

    async def check(name: str, request: Any) -> None:
        assert name == api
        checked.append("request")

    async def forward(*_: Any, **__: Any) -> dict[str, Any]:
        return {"responses": []}

    link: Any = SimpleNamespace(check_settings=check, forward=forward)
    authorizer: Any = SimpleNamespace(sees=lambda peer, *_: peer.principal.name == "admin")
    (found,) = [each for each in Forwarding(link, 1, authorizer).table() if each.name == api]
    peer = Peer("10.0.0.1", 1, "CLIENT", principal=Principal("User", user))
    assert found.handler is not None
    request = request_schema(api).root.new()
    asyncio.run(found.handler(request, Context(1, "c", peer)))  # type: ignore[arg-type]
    assert checked == opened
