"""A request as a handler sees it, the table of APIs that are answered, and what answers the two hot ones.

ApiVersions (18): what this broker speaks, and the answer that even a client from the future can read.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol import fetch as fetch_codec
from millstream.formats.protocol import produce as produce_codec
from millstream.formats.protocol.fetch import ResponseParts
from millstream.formats.protocol.schema import request_schema
from millstream.formats.protocol.wire_types import ApiVersionsRequest, ApiVersionsResponse, ApiVersionsResponseApiKeys
from millstream.node.server.service import Peer, Turn


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
    frame: bytes = b""
    """The whole request, header and all, for APIs that ask for it."""


Handler = Callable[[Any, Context], "Response | Awaitable[Response]"]
"""Takes the decoded request of its API (`wire_types`), and returns the fields of the response."""


@dataclass(frozen=True, slots=True)
class Api:
    key: int
    name: str
    first_version: int
    last_version: int
    handler: Handler | None = None
    """None for produce and fetch, which the dispatcher knows by itself."""
    with_frame: bool = False
    """Whether the handler gets the request's bytes too, to pass them on."""


def api(name: str, handler: Handler, *, with_frame: bool = False) -> Api:
    """An API in all versions of it that the schema has."""
    schema = request_schema(name)
    return Api(schema.api_key, name, schema.versions.low, schema.versions.high, handler, with_frame)


ProduceResults = list[tuple[bytes, list[produce_codec.PartitionResult]]]
FetchTopics = list[tuple[bytes, list[fetch_codec.PartitionResult]]]


BROKER_CLIENT_ID = "millstream-broker-"
"""How the client ids begin that brokers use among each other."""


class TurnTaker(Turn):
    """A way to wait for the results of a request that was not looked into yet: its connection waits with it."""

    __slots__ = ()

    def __call__(self, answer: "Callable[[ProduceResults], None]") -> None:
        raise NotImplementedError


class ProduceService(Protocol):
    def append(
        self, request: produce_codec.ProduceRequest, version: int, buffer: bytearray, *, by_broker: bool = False
    ) -> "tuple[ProduceResults, Callable[[Callable[[ProduceResults], None]], None] | None]":
        """Appends everything while the buffer is at hand. Results that have to wait for replicas or the disk come with
        a function that takes whom to tell. `by_broker` says that another broker asks, for topics of its own."""
        ...


class Waiting(Protocol):
    def give_up(self) -> None:
        """Nobody waits for the answer any more."""
        ...


class FetchService(Protocol):
    def fetch(
        self,
        request: fetch_codec.FetchRequest,
        version: int,
        deliver: Callable[[FetchTopics, int, int], None],
    ) -> Waiting | None:
        """Answers through `deliver` (topics, top-level error, session id), now or later."""
        ...


_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.")


class ApiVersions:
    def __init__(
        self, apis: Iterable[Api], features: Callable[[], tuple[Mapping[str, tuple[int, int]], Mapping[str, int], int]]
    ) -> None:
        """`features` gives the supported ranges, the finalized levels and the metadata epoch they stem from."""
        self._rows: list[ApiVersionsResponseApiKeys] = [
            # Kafka 4 offers Produce from version 0 although it takes only 3 and later: old librdkafka looks for it.
            {
                "api_key": api.key,
                "min_version": 0 if api.key == 0 else api.first_version,
                "max_version": api.last_version,
            }
            for api in sorted(apis, key=lambda api: api.key)
        ]
        self._features = features

    def handle(self, request: ApiVersionsRequest, context: Context) -> ApiVersionsResponse:
        if context.version < 0:
            return {"error_code": ErrorCode.UNSUPPORTED_VERSION, "api_keys": self._rows}
        if context.version >= 3:
            if not (_is_name(request.client_software_name) and _is_name(request.client_software_version)):
                return {"error_code": ErrorCode.INVALID_REQUEST, "api_keys": []}
            context.peer.client_software = f"{request.client_software_name} {request.client_software_version}"
        supported, finalized, epoch = self._features()
        return {
            "api_keys": self._rows,
            "supported_features": [
                {"name": name, "min_version": low, "max_version": high}
                for name, (low, high) in supported.items()
                # Versions before 4 cannot tell a feature that starts at 0.
                if low > 0 or context.version >= 4
            ],
            "finalized_features_epoch": epoch,
            "finalized_features": [
                {"name": name, "max_version_level": level, "min_version_level": level}
                for name, level in finalized.items()
            ],
        }


def _is_name(text: str) -> bool:
    return bool(text) and text[0] not in "-." and text[-1] not in "-." and _NAME_CHARACTERS.issuperset(text)
