"""The interface between the dispatcher and quotas: what a client has used, and how long it is throttled.

A dispatcher has no `Throttling` while there are no quotas, so that requests pay one attribute test. Limits, rates and
the clients that share them are in `node/quotas/`.
"""

import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import Protocol

from millstream.formats.protocol.fetch import FetchRequest
from millstream.formats.protocol.schema import response_schema
from millstream.node.server.service import Part, Peer

_INT32 = struct.Struct(">i")
_HEAD_BYTES = 8  # size, correlation id
_SHARE_FETCH = "share_fetch"


class ClientThrottle(Protocol):
    """The quotas of one client: a user and a client id. All methods return the throttle time in milliseconds."""

    @property
    def largest_fetch_bytes(self) -> int | None:
        """The size of a fetch response that is within the quota after a pause; None without a quota."""
        ...

    def produced(self, size: int) -> int:
        """Counts a produce request."""
        ...

    def fetched(self, size: int) -> int:
        """Counts a fetch response."""
        ...

    def may_fetch(self, size: int) -> int:
        """As `fetched`, but counts nothing if the response would exceed the quota: an empty one is sent then."""
        ...

    def worked(self, seconds: float) -> int:
        """Counts time on the event loop."""
        ...


class Throttling(Protocol):
    def client(self, peer: Peer, client_id: bytes) -> ClientThrottle | None:
        """None if the client has no quota."""
        ...


@cache
def throttle_position(api: str, version: int) -> int:
    """The position of `throttle_time_ms` in the frame of a response; -1 if it is not at the beginning of the body."""
    schema = response_schema(api)
    fields = schema.root.plain(version)
    if not fields or fields[0].name != "throttle_time_ms":
        return -1
    return _HEAD_BYTES + (1 if schema.is_flexible(version) else 0)


def throttle_of(api: str, version: int, parts: Sequence[Part]) -> int:
    """The throttle time in an encoded response."""
    position = throttle_position(api, version)
    head = parts[0]
    if position < 0 or not isinstance(head, bytes | bytearray) or len(head) < position + 4:
        return 0
    (found,) = _INT32.unpack_from(head, position)
    return int(found)


def set_throttle(api: str, version: int, parts: Sequence[Part], throttle_ms: int) -> None:
    position = throttle_position(api, version)
    head = parts[0]
    if position >= 0 and isinstance(head, bytearray) and len(head) >= position + 4:
        _INT32.pack_into(head, position, throttle_ms)


class FetchThrottle:
    """The quotas of one fetch of a consumer, from its arrival to its response."""

    __slots__ = ("_arrival_s", "_begun", "_client", "_now", "_peer", "_throttle_ms")

    def __init__(self, client: ClientThrottle, peer: Peer, now: Callable[[], float], begun: float) -> None:
        self._client = client
        self._peer = peer
        self._now = now
        self._begun = begun
        self._arrival_s: float | None = None
        self._throttle_ms = 0

    def limit(self, request: FetchRequest) -> None:
        """Gives the request a limit of bytes that the quota allows after a pause."""
        largest = self._client.largest_fetch_bytes
        if largest is not None and largest < request.max_bytes:
            request.max_bytes, request.min_bytes = largest, min(request.min_bytes, largest)

    def admits(self, size: int) -> bool:
        """Whether records of this size may be sent now. If not, the response is empty and has a throttle time."""
        self._throttle_ms = self._client.may_fetch(size)
        return not self._throttle_ms

    def arrived(self) -> None:
        """The fetch has its response, or waits for records: that time does not count."""
        self._arrival_s = self._now() - self._begun

    def ended(self) -> int:
        """The throttle time for the response."""
        spent_s = self._now() - self._begun if self._arrival_s is None else self._arrival_s
        throttle_ms = max(self._throttle_ms, self._client.worked(spent_s))
        throttle_peer(self._peer, throttle_ms)
        return throttle_ms


def throttle_peer(peer: Peer, throttle_ms: int) -> None:
    """Mutes the connection of a client for its throttle time."""
    if throttle_ms and peer.throttle is not None:
        peer.throttle(throttle_ms)


def throttle_response(
    api: str, version: int, parts: Sequence[Part], peer: Peer, client: ClientThrottle, seconds: float
) -> None:
    """Sets the throttle time of an encoded response. One from the controller may have a throttle time already."""
    throttle_ms = client.worked(seconds)
    if api == _SHARE_FETCH:
        throttle_ms = max(throttle_ms, client.fetched(sum(_length(part) for part in parts)))
    throttle_ms = max(throttle_ms, throttle_of(api, version, parts))
    if throttle_ms:
        set_throttle(api, version, parts, throttle_ms)
        throttle_peer(peer, throttle_ms)


def _length(part: Part) -> int:
    return len(part) if isinstance(part, bytes | bytearray) else part.length
