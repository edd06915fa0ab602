"""A request as a handler gets it, the table of APIs, the services of Produce and Fetch, and ApiVersions (18)."""

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
    """A response with ranges of files in it."""

    def encode(self, parts: ResponseParts, version: int) -> None: ...


Response = Mapping[str, Any] | bytes | FileResponse
"""The fields of the response, or its encoded body."""


@dataclass(frozen=True, slots=True)
class Context:
    """The sender and the version of a request."""

    version: int
    client_id: str
    peer: Peer
    frame: bytes = b""
    """The whole request with its header, for APIs with `with_frame`."""


Handler = Callable[[Any, Context], "Response | Awaitable[Response]"]
"""Takes the decoded request of its API (`wire_types`), and returns the fields of the response."""


@dataclass(frozen=True, slots=True)
class Api:
    key: int
    name: str
    first_version: int
    last_version: int
    handler: Handler | None = None
    """None for Produce and Fetch, which the dispatcher handles."""
    with_frame: bool = False
    """Whether the handler also gets the request's bytes, to forward them."""


def api(name: str, handler: Handler, *, with_frame: bool = False) -> Api:
    """An API in all versions of its schema."""
    schema = request_schema(name)
    return Api(schema.api_key, name, schema.versions.low, schema.versions.high, handler, with_frame)


ProduceResults = list[tuple[bytes, list[produce_codec.PartitionResult]]]
FetchTopics = list[tuple[bytes, list[fetch_codec.PartitionResult]]]


BROKER_CLIENT_ID = "millstream-broker-"
"""Prefix of the client ids that brokers use for requests to each other."""


class TurnTaker(Turn):
    """Delivers the results of a held request later. Its connection is not read until then."""

    __slots__ = ()

    def __call__(self, deliver: "Callable[[ProduceResults], None]") -> None:
        raise NotImplementedError


class ProduceService(Protocol):
    def append(
        self, request: produce_codec.ProduceRequest, version: int, buffer: bytearray, *, by_broker: bool = False
    ) -> "tuple[ProduceResults, Callable[[Callable[[ProduceResults], None]], None] | None]":
        """Appends all batches before it returns, or copies them. If the results wait for replicas or the disk, returns
        a function that delivers them later. `by_broker`: another broker sends it, for internal topics."""
        ...


class Waiting(Protocol):
    def give_up(self) -> None:
        """The client has disconnected."""
        ...


class FetchService(Protocol):
    def fetch(
        self,
        request: fetch_codec.FetchRequest,
        version: int,
        deliver: Callable[[FetchTopics, int, int], None],
        admits: Callable[[int], bool] | None = None,
    ) -> Waiting | None:
        """Responds through `deliver` (topics, top-level error, session id), now or later. `admits` is called with the
        size of the records that were found; if it returns false, the response is empty."""
        ...


_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.")


class ApiVersions:
    """Responds with the supported APIs, in a form that clients of any version can read."""

    def __init__(
        self, apis: Iterable[Api], features: Callable[[], tuple[Mapping[str, tuple[int, int]], Mapping[str, int], int]]
    ) -> None:
        """`features` returns the supported ranges, the finalized levels and the metadata epoch of these."""
        self._rows: list[ApiVersionsResponseApiKeys] = [
            # As Kafka 4 does: it offers Produce from version 0 for old librdkafka, and accepts only 3 and later.
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
                # Versions before 4 cannot express a feature whose range starts at 0.
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
