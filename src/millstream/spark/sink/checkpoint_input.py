"""What a micro-batch reads, by the log of offsets in Spark's checkpoint; where this process can read that.

Spark writes `offsets/<batch>` before it runs a batch, and runs it again with what is there. Only offsets of our own
source say by themselves which records they are (topic ids included). Others are numbers in logs that the checkpoint
itself holds, such as those of a directory of files: after it was put back, the same number may be other files.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millstream.spark.errors import CheckpointError, SinkError
from millstream.spark.sink.batch_input import BatchInput
from millstream.spark.sink.row_digest import RowDigest
from millstream.spark.source.offsets import NOTE, StreamOffset

_VERSION = "v1"
_NO_DATA_YET = "-"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


@dataclass(frozen=True, slots=True)
class CheckpointOffsets:
    """A checkpoint whose newest batch reads from our sources alone."""

    root: str
    query: str

    @classmethod
    def find(cls, location: str | None) -> "CheckpointOffsets | None":
        """None if it is not on a disk of this machine, or has other sources."""
        if not location or (root := _local(location)) is None:
            return None
        try:
            query = str(json.loads((root / "metadata").read_text())["id"])
            newest = max(int(each.name) for each in (root / "offsets").iterdir() if each.name.isdigit())
            return cls(str(root), query) if _batch(root, newest) is not None else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def input_of(self, batch: int) -> BatchInput:
        root = Path(self.root)
        try:
            found = _batch(root, batch)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SinkError(f"{root} has no offsets of batch {batch} that can be read: {error}") from error
        if found is None:
            raise SinkError(f"{root} has offsets of other sources for batch {batch} than a moment ago")
        begin, end = found
        ranges: dict[str, Any] = {"begin": begin.sources, "end": end.sources}
        if (root / "state").exists():
            # What a query with state gives depends on the time of its batch and on the watermark, too.
            ranges["time"] = [end.metadata.get(name) for name in ("batchTimestampMs", "batchWatermarkMs")]
        return BatchInput.of_offsets(ranges, _ends(end.sources))


def input_of_rows(digests: Sequence[RowDigest | None]) -> BatchInput:
    """Where offsets do not say it: by the rows of all tasks."""
    total = RowDigest()
    for each in digests:
        if each is None:
            raise SinkError("the checkpoint could be read before the batch, and cannot be now: start the query again")
        total += each
    return BatchInput.of_rows(total.rows, total.total)


@dataclass(frozen=True, slots=True)
class _Entry:
    metadata: dict[str, Any]
    sources: list[dict[str, Any] | None]


def _batch(root: Path, number: int) -> tuple[_Entry, _Entry] | None:
    """Where a batch begins and where it ends; None if any of it is not ours."""
    end = _entry(root, number)
    begin = _entry(root, number - 1) if number else _Entry({}, [])
    return None if begin is None or end is None else (begin, end)


def _entry(root: Path, batch: int) -> _Entry | None:
    """One file of the log; None if it has offsets that are not ours."""
    version, metadata, *sources = (root / "offsets" / str(batch)).read_text().split("\n")
    if version != _VERSION:
        return None
    parsed = [None if each == _NO_DATA_YET else json.loads(each) for each in sources]
    known = [each for each in parsed if each is not None]
    if not known or not all(isinstance(each, dict) and NOTE in each for each in known):
        return None
    return _Entry(json.loads(metadata), parsed)


def _ends(sources: list[dict[str, Any] | None]) -> list[str]:
    """As `startingOffsets` takes them; nothing while a source reads a table, which no offset of a topic can say."""
    found = []
    for each in sources:
        try:
            offset = StreamOffset.from_json(each or {})
        except CheckpointError:
            return []
        if each is None or (offset.history is not None and not offset.history.is_done):
            return []
        positions = {topic: value for topic, value in each.items() if topic != NOTE}
        found.append(json.dumps(positions, separators=(",", ":")))
    return found


def _local(location: str) -> Path | None:
    if location.startswith("file:"):
        return Path("/" + location.removeprefix("file:").lstrip("/"))
    return None if _SCHEME.match(location) else Path(location)
