"""JSON objects that follow each other in one stream, told apart as the bytes come in, but not read."""

import re

_IN_STRING = re.compile(rb'["\\]')
_OUTSIDE = re.compile(rb'["{}\[\]]')
_SPACE = b" \t\r\n"


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

    def feed(self, data: bytes) -> list[bytes]:
        """The objects that are complete now. BrokenStreamError once; what was complete before it has been told."""
        self._kept += data
        found: list[bytes] = []
        try:
            while (one := self._next()) is not None:
                found.append(one)
        except BrokenStreamError:
            if not found:
                raise
            self._at = 0  # whoever asks again hears of it
        return found

    @property
    def is_clean(self) -> bool:
        """Whether nothing is left over."""
        return not self._kept.strip(_SPACE)

    def _next(self) -> bytes | None:
        kept = self._kept
        if not self._depth:
            start = len(kept) - len(kept.lstrip(_SPACE))
            del kept[:start]
            self._at = 0
            if not kept:
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
                    one = bytes(kept[: self._at])
                    del kept[: self._at]
                    self._at = 0
                    return one
        else:
            self._at = len(kept)
        if len(kept) > self._max_bytes:
            raise BrokenStreamError(f"a record is larger than {self._max_bytes} bytes")
        return None
