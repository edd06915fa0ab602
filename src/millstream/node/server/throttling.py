"""The interface between the dispatcher and quotas: what a client has used, and how long it is throttled.

A dispatcher has no `Throttling` while there are no quotas, so that requests pay one attribute test. Limits, rates and
the clients that share them are in `node/quotas/`.
"""

import struct
from collections.abc import Sequence
from functools import cache
from typing import Protocol

from millstream.formats.protocol.schema import response_schema
from millstream.node.server.service import Part, Peer

_INT32 = struct.Struct(">i")
_HEAD_BYTES = 8  # size, correlation id


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
