"""The principal in an Envelope, in the format of Kafka's DefaultPrincipalBuilder (DefaultPrincipalData, version 0).

A version, then type, name, and whether a delegation token was used. Groups of the client are a tagged field of ours,
which other programs skip.
"""

import ipaddress
import struct

from millstream.formats.model.access_control import Principal, parse_principal
from millstream.formats.records.varint import append_unsigned, read_unsigned
from millstream.node.server.service import Peer

_VERSION = struct.Struct(">h")
_GROUPS_TAG = 10_000
_LONGEST_BYTES = 1 << 20


def encode_principal(peer: Peer) -> bytes:
    out = bytearray(_VERSION.pack(0))
    _append_text(out, peer.principal.kind)
    _append_text(out, peer.principal.name)
    out.append(peer.token_authenticated)
    if not peer.groups:
        out.append(0)
        return bytes(out)
    groups = bytearray()
    append_unsigned(groups, len(peer.groups))
    for group in peer.groups:
        _append_text(groups, str(group))
    append_unsigned(out, 1)
    append_unsigned(out, _GROUPS_TAG)
    append_unsigned(out, len(groups))
    return bytes(out + groups)


def _append_text(out: bytearray, text: str) -> None:
    data = text.encode()
    append_unsigned(out, len(data) + 1)
    out += data


def decode_principal(data: bytes) -> tuple[Principal, bool, tuple[Principal, ...]]:
    """Principal, whether it used a token, and its groups. ValueError if the bytes are not a principal."""
    try:
        if len(data) > _LONGEST_BYTES or _VERSION.unpack_from(data)[0] != 0:
            raise ValueError("unknown version of a principal")
        kind, position = _read_text(data, _VERSION.size)
        name, position = _read_text(data, position)
        by_token = bool(data[position])
        tags, position = read_unsigned(data, position + 1)
        groups: tuple[Principal, ...] = ()
        for _ in range(tags):
            tag, position = read_unsigned(data, position)
            size, position = read_unsigned(data, position)
            if tag == _GROUPS_TAG:
                groups = _read_groups(data[: position + size], position)
            position += size
    except (IndexError, struct.error, UnicodeDecodeError):
        raise ValueError("a principal that is cut off") from None
    if position != len(data) or not kind:
        raise ValueError("a principal with other bytes")
    return Principal(kind, name), by_token, groups


def _read_groups(data: bytes, position: int) -> tuple[Principal, ...]:
    count, position = read_unsigned(data, position)
    if count > len(data):
        raise ValueError("too many groups")
    groups = []
    for _ in range(count):
        text, position = _read_text(data, position)
        groups.append(parse_principal(text))
    return tuple(groups)


def _read_text(data: bytes, position: int) -> tuple[str, int]:
    size, position = read_unsigned(data, position)
    end = position + size - 1
    if size < 1 or end > len(data):
        raise ValueError("a text that is cut off")
    return data[position:end].decode(), end


def address_bytes(host: str) -> bytes:
    """The bytes of an IP address: four, or sixteen. Four zeros for a host that is no address."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).packed
    except ValueError:
        return bytes(4)


def address_text(data: bytes) -> str:
    try:
        return str(ipaddress.ip_address(data))
    except ValueError:
        return "unknown"
