"""JSON objects that follow each other in one stream, told apart as the bytes come in, but not read.

The smallest are two bytes long, so that one piece of the stream may hold very many: others have their turn in between.
"""

import asyncio
import re
from collections.abc import AsyncIterable, AsyncIterator, Iterator

_STRETCH_BYTES = 16 << 10
_STRETCH_OBJECTS = 100
"""After so much, other requests have their turn."""
_IN_STRING = re.compile(rb'["\\]')
_OUTSIDE = re.compile(rb'["{}\[\]]')
_NO_SPACE = re.compile(rb"[^ \t\r\n]")


class BrokenStreamError(ValueError):
    """What comes is no JSON object, or too large a one: where the next begins cannot be told."""


class JsonSplitter:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept = bytearray()
        self._at = 0
        """Up to here it has been looked at."""
        self._depth = 0
        self._in_string = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The objects that are complete now, each found when it is asked for; BrokenStreamError in the place of one."""
        self._kept += data
        while (one := self._next()) is not None:
            yield one

    @property
    def is_clean(self) -> bool:
        """Whether nothing is left over."""
        return _NO_SPACE.search(self._kept) is None

    def _next(self) -> bytes | None:
        kept = self._kept
        if not self._depth:
            begin = _NO_SPACE.search(kept)
            del kept[: len(kept) if begin is None else begin.start()]
            self._at = 0
            if begin is None:
                return None
            if kept[0] != 0x7B:
                raise BrokenStreamError("a record must be a JSON object")
        while (mark := (_IN_STRING if self._in_string else _OUTSIDE).search(kept, self._at)) is not None:
            byte, self._at = kept[mark.start()], mark.end()
            if byte == 0x5C:  # a backslash: whatever follows it does not count
                if self._at == len(kept):
                    self._at -= 1
                    break
                self._at += 1
            elif byte == 0x22:
                self._in_string = not self._in_string
            elif byte in b"{[":
                self._depth += 1
            else:
                self._depth -= 1
                if not self._depth:
                    self._check_size(self._at)
                    one = bytes(kept[: self._at])
                    del kept[: self._at]
                    self._at = 0
                    return one
        else:
            self._at = len(kept)
        self._check_size(len(kept))
        return None

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            raise BrokenStreamError(f"a record is larger than {self._max_bytes} bytes")


async def split(pieces: AsyncIterable[bytes], max_bytes: int) -> AsyncIterator[bytes]:
    """The objects of a whole stream; BrokenStreamError in the place of the first that makes no sense, or is cut off."""
    splitter, count = JsonSplitter(max_bytes), 0
    async for piece in pieces:
        for start in range(0, len(piece), _STRETCH_BYTES):
            for one in splitter.feed(piece[start : start + _STRETCH_BYTES]):
                yield one
                count += 1
                if not count % _STRETCH_OBJECTS:
                    await asyncio.sleep(0)
            await asyncio.sleep(0)
    if not splitter.is_clean:
        raise BrokenStreamError("the last record is cut off")
