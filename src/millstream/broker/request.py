"""A request as a handler sees it, and the table of APIs a broker answers."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from millstream.net.service import Peer
from millstream.protocol.fetch import ResponseParts
from millstream.protocol.schema import Message


class FileResponse(Protocol):
    """An answer that holds stretches of files."""

    def encode(self, parts: ResponseParts, version: int) -> None: ...


Response = Mapping[str, Any] | bytes | FileResponse
"""The fields of the answer, or its body where a handler keeps it encoded."""


@dataclass(frozen=True, slots=True)
class Context:
    """Around the request's own fields: who asks, and in which version."""

    version: int
    client_id: str
    peer: Peer


Handler = Callable[[Message, Context], "Response | Awaitable[Response]"]


@dataclass(frozen=True, slots=True)
class Api:
    key: int
    name: str
    first_version: int
    last_version: int
    handler: Handler | None = None
    """None for produce and fetch, which the dispatcher knows by itself."""
