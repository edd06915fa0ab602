"""A request as a handler gets it, the table of APIs, the services of Produce and Fetch, and ApiVersions (18)."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol import fetch as fetch_codec
from millstream.formats.protocol import offset_commit
from millstream.formats.protocol import produce as produce_codec
from millstream.formats.protocol.fetch import ResponseParts
from millstream.formats.protocol.primitives import Cursor
from millstream.formats.protocol.schema import request_schema
from millstream.formats.protocol.wire_types import ApiVersionsRequest, ApiVersionsResponse, ApiVersionsResponseApiKeys
from millstream.node.server.service import Peer, ReadPause


class FileResponse(Protocol):
    """A response with ranges of files in it."""

    def encode(self, parts: ResponseParts, version: int) -> None: ...


Response = Mapping[str, Any] | bytes | FileResponse
"""The fields of the response, or its encoded body."""


class LaterResponse:
    """A response that comes soon: the dispatcher needs no task for it. Others may await it, as any response."""

    __slots__ = ("_on_resolved", "_response")

    def __init__(self) -> None:
        self._response: Response | None = None
        self._on_resolved: Callable[[Response], None] | None = None

    def resolve(self, response: Response) -> None:
        assert self._response is None, "a request has one response"
        self._response = response
        if self._on_resolved is not None:
            self._on_resolved(response)

    def when_resolved(self, callback: Callable[[Response], None]) -> None:
        if self._response is not None:
            callback(self._response)
        else:
            self._on_resolved = callback

    def __await__(self) -> Generator[Any, None, Response]:
        resolved: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self.when_resolved(lambda response: None if resolved.done() else resolved.set_result(response))
        return resolved.__await__()


class Context:
    """The sender and the version of a request. One is made for each request, so it is no dataclass: the `__init__` of
    those is plain Python."""

    __slots__ = ("client_id", "frame", "is_forwarded", "peer", "version")

    def __init__(
        self, version: int, client_id: str, peer: Peer, frame: bytes = b"", is_forwarded: bool = False
    ) -> None:
        self.version = version
        self.client_id = client_id
        self.peer = peer
        self.frame = frame
        """The whole request with its header, for APIs with `with_frame`."""
        self.is_forwarded = is_forwarded
        """Whether a broker forwarded it in an Envelope: the peer is the client, not the broker."""


Handler = Callable[[Any, Context], "Response | Awaitable[Response]"]
"""Takes the decoded request of its API (`wire_types`), and returns the fields of the response."""


@dataclass(frozen=True, slots=True)
class Codec:
    """Reads requests and writes responses of one API, by hand."""

    read: Callable[[Cursor, int], Any]
    write: Callable[[bytearray, Mapping[str, Any], int], None]


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
    codec: Codec | None = None
    """None: that of the schema. Long requests are read by the schema in any case."""


_BY_HAND = {"offset_commit": Codec(offset_commit.read_request, offset_commit.write_response)}


def api(name: str, handler: Handler, *, with_frame: bool = False) -> Api:
    """An API in all versions of its schema."""
    schema = request_schema(name)
    return Api(schema.api_key, name, schema.versions.low, schema.versions.high, handler, with_frame, _BY_HAND.get(name))


ProduceResults = list[tuple[bytes, list[produce_codec.PartitionResult]]]
FetchTopics = list[tuple[bytes, list[fetch_codec.PartitionResult]]]
Refusals = Mapping[bytes, int]
"""The error code of each topic, by the bytes of its name or id; 0 for a topic that the client may use."""


class DataAuthorization(Protocol):
    """The permissions of Produce and Fetch (`node/security/data_rights.py`)."""

    def produce(
        self, request: produce_codec.ProduceRequest, version: int, peer: Peer
    ) -> tuple[produce_codec.ProduceRequest, ProduceResults]:
        """The request without the topics that the client may not write to, and the results of those."""
        ...

    def fetch(self, request: fetch_codec.FetchRequest, version: int, peer: Peer) -> Refusals | None:
        """The error codes of topics for this fetch; None if it may read everything."""
        ...


BROKER_CLIENT_ID = "millstream-broker-"
"""Prefix of the client ids that brokers use for requests to each other. It proves nothing: see `ListenerRules`."""
BROKER_SOFTWARE = "millstream-broker"
"""The software name in the ApiVersions request of a broker. The version is its proof (`broker_proof.py`)."""


OWN_SOFTWARE = "millstream"
"""The software name of Millstream's own client, which alone is offered APIs that Kafka does not have."""
FIRST_OWN_API = 10_000
"""The keys of Millstream's own APIs begin here."""


@dataclass(frozen=True, slots=True)
class ListenerRules:
    """Which listener serves what.

    A listener for clients, if the brokers have another one for each other, does not serve the APIs with which brokers
    talk to each other, and no fetch as a follower. If there is one listener for all, it serves everything, as in Kafka.
    """

    client_listeners: frozenset[str] = frozenset()
    """The listeners that only clients use."""
    hidden: frozenset[int] = frozenset()
    """The keys of the APIs that these do not serve."""
    is_broker: Callable[[Peer], bool] = lambda peer: False
    """Whether a client that says that it is a broker has proved it. Only brokers write to internal topics."""

    def hides(self, key: int, peer: Peer) -> bool:
        return key in self.hidden and peer.listener in self.client_listeners


class DeferredResults:
    """Delivers the results of a held Produce request later. The connection is not read until the read pause is over.

    The read pause is an attribute and not a base class: a compiled class that can be called must not have a base that
    cannot (ADR 36).
    """

    __slots__ = ("read_pause",)

    def __init__(self) -> None:
        self.read_pause = ReadPause()

    def __call__(self, deliver: "Callable[[ProduceResults], None]") -> None:
        raise NotImplementedError


class ProduceService(Protocol):
    def append(
        self, request: produce_codec.ProduceRequest, version: int, buffer: bytearray, *, by_broker: bool = False
    ) -> "tuple[ProduceResults, Callable[[Callable[[ProduceResults], None]], None] | None]":
        """Appends all batches before it returns, or copies them. If the results wait for replicas or the disk, returns
        a function that delivers them later. `by_broker`: another broker sends it, for internal topics."""
        ...


class WaitingFetch(Protocol):
    def give_up(self) -> None:
        """The client has disconnected."""
        ...


class FetchService(Protocol):
    def fetch(
        self,
        request: fetch_codec.FetchRequest,
        version: int,
        deliver: Callable[[FetchTopics, int, int], None],
        refusals: Refusals | None = None,
        admits: Callable[[int], bool] | None = None,
    ) -> WaitingFetch | None:
        """Responds through `deliver` (topics, top-level error, session id), now or later. `refusals` has the topics
        that the client may not read; None if it may read all. `admits` is called with the size of the records that were
        found; if it returns false, the response is empty."""
        ...


_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.")


class ApiVersions:
    """Responds with the supported APIs, in a form that clients of any version can read."""

    def __init__(
        self,
        apis: Iterable[Api],
        features: Callable[[], tuple[Mapping[str, tuple[int, int]], Mapping[str, int], int]],
        rules: ListenerRules = ListenerRules(),
        unused: Callable[[], Collection[int]] = tuple,
    ) -> None:
        """`features` returns the supported ranges, the finalized levels and the metadata epoch of these. `unused`: APIs
        that clients need not know of at present."""
        self._rules = rules
        self._unused = unused
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
        rows = self._rows
        context.peer.client_id = context.client_id  # for audits: the first request of nearly all clients
        if context.peer.listener in self._rules.client_listeners:
            rows = [row for row in rows if row["api_key"] not in self._rules.hidden]
        if context.version < 3 or request.client_software_name != OWN_SOFTWARE:
            rows = [row for row in rows if row["api_key"] < FIRST_OWN_API]
        if unused := self._unused():
            rows = [row for row in rows if row["api_key"] not in unused]
        if context.version < 0:
            return {"error_code": ErrorCode.UNSUPPORTED_VERSION, "api_keys": rows}
        if context.version >= 3:
            if not (_is_name(request.client_software_name) and _is_name(request.client_software_version)):
                return {"error_code": ErrorCode.INVALID_REQUEST, "api_keys": []}
            self._note_software(request, context.peer)
        supported, finalized, epoch = self._features()
        return {
            "api_keys": rows,
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

    @staticmethod
    def _note_software(request: ApiVersionsRequest, peer: Peer) -> None:
        name, version = request.client_software_name, request.client_software_version
        if name == BROKER_SOFTWARE:
            peer.broker_claim = version  # a secret of brokers: it is not shown
            version = version.partition(".")[0]
        peer.client_software = f"{name} {version}"


def _is_name(text: str) -> bool:
    return bool(text) and text[0] not in "-." and text[-1] not in "-." and _NAME_CHARACTERS.issuperset(text)
