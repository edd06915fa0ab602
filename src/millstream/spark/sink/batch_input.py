"""What a batch was made of. It is kept with what was written, so that a batch id means the same input each time.

Spark numbers micro-batches by its checkpoint. A checkpoint that is older than the output gives a number that was used
already to other rows. The number alone would count them as written, and they would be lost.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OFFSETS, ROWS = "offsets", "rows"
MARK_DIGITS = 12
_MARK = re.compile(rf"[0-9a-f]{{{MARK_DIGITS}}}")
_SHOWN_ENDS = 4096
"""Offsets of very many partitions are kept as a mark alone: they are there to be read by people."""


@dataclass(frozen=True, slots=True)
class BatchInput:
    """The mark says whether two inputs are the same; the rest is for people who have to go on from there."""

    kind: str
    mark: str
    rows: int | None = None
    ends: tuple[str, ...] = ()
    """Where each source ended, as `startingOffsets` takes it; empty if that is not known or too long."""

    @classmethod
    def of_offsets(cls, ranges: Any, ends: Sequence[str] = ()) -> "BatchInput":
        """`ranges` is all that says which records were read; any JSON."""
        text = json.dumps(ranges, sort_keys=True, separators=(",", ":"))
        return cls(OFFSETS, _mark(OFFSETS, text), None, tuple(ends) if sum(map(len, ends)) <= _SHOWN_ENDS else ())

    @classmethod
    def of_rows(cls, rows: int, digest: int) -> "BatchInput":
        """`digest` must not depend on the order of rows, or on how they were spread over tasks."""
        return cls(ROWS, _mark(ROWS, f"{rows} {digest}"), rows)

    def is_same(self, other: "BatchInput") -> bool:
        return self.mark == other.mark

    def to_json(self) -> dict[str, Any]:
        shown = {"kind": self.kind, "mark": self.mark, "rows": self.rows, "ends": list(self.ends)}
        return {name: value for name, value in shown.items() if value not in (None, [])}

    @classmethod
    def from_json(cls, document: Mapping[str, Any] | None) -> "BatchInput | None":
        """None for what an earlier version wrote, which kept nothing of this."""
        if document is None:
            return None
        mark = str(document["mark"])
        if not _MARK.fullmatch(mark):
            raise ValueError(f"{mark!r} is not the mark of a batch's input")
        return cls(str(document["kind"]), mark, document.get("rows"), tuple(document.get("ends", ())))

    def __str__(self) -> str:
        if self.kind == ROWS:
            return f"{self.rows} rows with the mark {self.mark}"
        return f"{self.kind} with the mark {self.mark}" + (f" that end at {_joined(self.ends)}" if self.ends else "")


@dataclass(frozen=True, slots=True)
class WrittenBatch:
    """The newest batch that is in the output."""

    number: int
    input: BatchInput | None
    """None if an earlier version wrote it."""


def refusal(query: str, batch: int, given: BatchInput | None, written: WrittenBatch) -> str | None:
    """Why a batch of a stream may not count as written, and what to do; None if it may. `given` is None where the user
    does not want the input compared (checkReplays=false)."""
    if batch == written.number:
        if given is None or written.input is None or given.is_same(written.input):
            return None
        what = (
            f"batch {batch} of query {query} was written already, with other input: {written.input} then, {given} now."
        )
    else:
        what = f"batch {batch} of query {query} is older than batch {written.number}, which was written already."
    why = (
        " The checkpoint is older than the output: an older copy of it was put back, a power cut took its newest files,"
        " or another run of this query is active. No row of this batch was written."
    )
    return what + why + _way_out(written.input) + (_same_after_all(given) if batch == written.number else "")


def refusal_of_write(app: str, number: int, given: BatchInput | None, written: WrittenBatch) -> str | None:
    """The same for a batch write that the user numbered (txnAppId, txnVersion)."""
    if number == written.number:
        if given is None or written.input is None or given.is_same(written.input):
            return None
        return (
            f"txnVersion {number} of txnAppId {app} was written already, with other rows: {written.input} then, {given}"
            " now. No row was written. Give new rows a higher txnVersion." + _same_after_all(given)
        )
    return (
        f"txnVersion {number} of txnAppId {app} is older than {written.number}, which was written already. No row was "
        "written. Give new rows a higher txnVersion; what was written before needs not be written again"
    )


def _way_out(written: BatchInput | None) -> str:
    begin = " What to do: put the newer checkpoint back; or start the query with a new checkpointLocation and "
    if written is not None and written.ends:
        state = " (windows, joins and other state begin empty then)"
        return f"{begin}startingOffsets={_joined(written.ends)}, which is where the output ends{state}"
    return f"{begin}from where the output ends, which its last rows show"


def _same_after_all(given: BatchInput | None) -> str:
    if given is None or given.kind != ROWS:
        return ""
    return (
        " If the input is the same after all, and the query makes other rows of it each time (rand(), uuid()) or was "
        "changed: set checkReplays=false, and what was written stays"
    )


def _joined(ends: Sequence[str]) -> str:
    return " and, for the next source, ".join(ends)


def _mark(kind: str, text: str) -> str:
    return hashlib.sha256(f"{kind} {text}".encode()).hexdigest()[:MARK_DIGITS]
