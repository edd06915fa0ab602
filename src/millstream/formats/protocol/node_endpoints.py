"""Where nodes listen, as the answers to Produce and Fetch tell it to clients that came to the wrong one (KIP-951)."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from millstream.formats.protocol.compact import append_varint


class NodeEndpoint(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None = None


Locate = Callable[[Iterable[int], str], Sequence[NodeEndpoint]]
"""Where nodes listen, for clients that came by the listener of this name."""


def append_endpoints(out: bytearray, endpoints: Sequence[NodeEndpoint]) -> None:
    """Appends a section of tagged fields that holds the endpoints and nothing else."""
    content = bytearray()
    append_varint(content, len(endpoints) + 1)
    for endpoint in endpoints:
        content += endpoint.node_id.to_bytes(4, "big", signed=True)
        _append_text(content, endpoint.host)
        content += endpoint.port.to_bytes(4, "big", signed=True)
        _append_text(content, endpoint.rack)
        content.append(0)
    out += b"\x01\x00"
    append_varint(out, len(content))
    out += content


def _append_text(out: bytearray, text: str | None) -> None:
    if text is None:
        out.append(0)
        return
    encoded = text.encode()
    append_varint(out, len(encoded) + 1)
    out += encoded
