"""What is done to a well-formed frame on its way to the broker. A frame here is its length and its content."""

import random
import struct

_SIZE = struct.Struct(">i")
_LARGEST = 100 << 20
_SIZES = (-(2**31), -1, 0, 1, 3, 7, 8, 9, _LARGEST + 1, 2**31 - 1)
_UNFINISHED_SIZES = (70_000, 1 << 20, 16 << 20, _LARGEST)
_INT32 = tuple(
    struct.pack(">i", value) for value in (-(2**31), -2, -1, 0, 1, 127, 128, 32_767, 65_536, 1 << 24, 2**31 - 1)
)
_VARINTS = (b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x80\x01", b"\xff" * 10, b"\x80\x00")
_BODY = 12
"""Where the client id starts: after length, key, version and correlation id."""


def _resized(frame: bytearray) -> bytearray:
    _SIZE.pack_into(frame, 0, len(frame) - 4)
    return frame


def flip_bits(frame: bytearray, chance: random.Random) -> bytearray:
    for _ in range(chance.choice((1, 1, 1, 2, 8))):
        frame[chance.randrange(_BODY, len(frame))] ^= 1 << chance.randrange(8)
    return frame


def truncate(frame: bytearray, chance: random.Random) -> bytearray:
    return _resized(frame[: chance.randrange(_BODY, len(frame))])


def extend(frame: bytearray, chance: random.Random) -> bytearray:
    return _resized(frame + chance.randbytes(chance.choice((1, 2, 100, 3000))))


def replace_int(frame: bytearray, chance: random.Random) -> bytearray:
    """A count or a length becomes an absurd one."""
    at = chance.randrange(_BODY, len(frame))
    frame[at : at + 4] = chance.choice(_INT32)
    return _resized(frame)


def insert_varint(frame: bytearray, chance: random.Random) -> bytearray:
    at = chance.randrange(_BODY, len(frame))
    frame[at : at + chance.randrange(2)] = chance.choice(_VARINTS)
    return _resized(frame)


def change_key(frame: bytearray, chance: random.Random) -> bytearray:
    key = chance.choice((-1, chance.randrange(100), chance.randrange(-(2**15), 2**15)))
    version = chance.choice((-1, chance.randrange(20), 2**15 - 1))
    struct.pack_into(">hh", frame, 4, key if chance.random() < 0.5 else frame[5], version)
    return frame


def nest_tags(frame: bytearray, chance: random.Random) -> bytearray:
    """Many tagged fields, the same one again, or one inside which others seem to be."""
    count = chance.choice((1, 5, 127, 1000))
    tags = bytearray((count & 0x7F | 0x80, count >> 7))
    for number in range(count):
        content = chance.randbytes(chance.choice((0, 0, 1, 20)))
        tags += bytes((number & 0x7F, len(content))) + content
    at = chance.choice((len(frame) - 1, chance.randrange(_BODY, len(frame))))
    frame[at : at + 1] = tags
    return _resized(frame)


def repeat_part(frame: bytearray, chance: random.Random) -> bytearray:
    start = chance.randrange(_BODY, len(frame))
    part = frame[start : start + chance.choice((1, 4, 16, 60))]
    frame[start:start] = part * chance.choice((1, 2, 50))
    return _resized(frame)


def noise(frame: bytearray, chance: random.Random) -> bytearray:
    return _resized(frame[:_BODY] + chance.randbytes(chance.randrange(1, 300)))


def lie_about_size(frame: bytearray, chance: random.Random) -> bytearray:
    """A length the broker must refuse at once."""
    _SIZE.pack_into(frame, 0, chance.choice(_SIZES))
    return frame


def leave_unfinished(frame: bytearray, chance: random.Random) -> bytearray:
    """A length that may be true, and then too few bytes."""
    _SIZE.pack_into(frame, 0, chance.choice(_UNFINISHED_SIZES))
    return frame


def change_client_id(frame: bytearray, chance: random.Random) -> bytearray:
    (length,) = struct.unpack_from(">h", frame, _BODY)
    name = chance.randbytes(chance.choice((0, 1, 4, 4, 4, 200)))
    frame[_BODY + 2 : _BODY + 2 + max(length, 0)] = name
    struct.pack_into(">h", frame, _BODY, len(name))
    return _resized(frame)


def forget_client_id(frame: bytearray, chance: random.Random) -> bytearray:
    (length,) = struct.unpack_from(">h", frame, _BODY)
    frame[_BODY : _BODY + 2 + max(length, 0)] = struct.pack(">h", -1)
    return _resized(frame)


MUTATIONS = (
    (flip_bits, 30),
    (truncate, 10),
    (extend, 8),
    (replace_int, 20),
    (insert_varint, 8),
    (change_key, 6),
    (nest_tags, 6),
    (repeat_part, 6),
    (noise, 4),
    (lie_about_size, 2),
)
_HARSH = [function for function, weight in MUTATIONS for _ in range(weight)]
_HARSH_SHARE = 0.08
"""Most of these cost the connection, and a new one takes longer than many frames."""
_MILD = (change_client_id, change_client_id, forget_client_id, extend)
"""A broker can still read the request after one of these, so that its absurd values come through to the handler."""


def mutate(frame: bytes, chance: random.Random) -> bytearray:
    functions = _HARSH if chance.random() < _HARSH_SHARE else _MILD
    return chance.choice(functions)(bytearray(frame), chance)
