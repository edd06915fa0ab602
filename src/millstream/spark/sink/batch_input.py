"""The input of a batch, kept with its output, so that a batch id always means the same input.

Spark numbers micro-batches by its checkpoint. A checkpoint that is older than the output gives a used number to other
rows. By the number alone they would count as written, and would be lost.
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
"""Offsets are kept for people; those of very many partitions are left out."""


@dataclass(frozen=True, slots=True)
class BatchInput:
    """Two inputs are the same if their marks are. The other fields are for error messages."""

    kind: str
    mark: str
    rows: int | None = None
    ends: tuple[str, ...] = ()
    """The end of each source, in the format of `startingOffsets`; empty if unknown or too long."""

    @classmethod
    def of_offsets(cls, ranges: Any, ends: Sequence[str] = ()) -> "BatchInput":
        """`ranges`: JSON that identifies the records that were read."""
        text = json.dumps(ranges, sort_keys=True, separators=(",", ":"))
        return cls(OFFSETS, _mark(OFFSETS, text), None, tuple(ends) if sum(map(len, ends)) <= _SHOWN_ENDS else ())

    @classmethod
    def of_rows(cls, rows: int, digest: int) -> "BatchInput":
        """`digest` must not depend on the order of rows or on their distribution over tasks."""
        return cls(ROWS, _mark(ROWS, f"{rows} {digest}"), rows)

    def is_same(self, other: "BatchInput") -> bool:
        return self.mark == other.mark

    def to_json(self) -> dict[str, Any]:
        shown = {"kind": self.kind, "mark": self.mark, "rows": self.rows, "ends": list(self.ends)}
        return {name: value for name, value in shown.items() if value not in (None, [])}

    @classmethod
    def from_json(cls, document: Mapping[str, Any] | None) -> "BatchInput | None":
        """None if an earlier version wrote the batch, without its input."""
        if document is None:
            return None
        mark = str(document["mark"])
        if not _MARK.fullmatch(mark):
            raise ValueError(f"{mark!r} is not a mark of a batch input")
        return cls(str(document["kind"]), mark, document.get("rows"), tuple(document.get("ends", ())))

    def __str__(self) -> str:
        if self.kind == ROWS:
            return f"{self.rows} rows with mark {self.mark}"
        return f"{self.kind} with mark {self.mark}" + (f" that end at {_joined(self.ends)}" if self.ends else "")


@dataclass(frozen=True, slots=True)
class WrittenBatch:
    """The newest batch in the output."""

    number: int
    input: BatchInput | None
    """None if an earlier version wrote it."""


def refusal(query: str, batch: int, given: BatchInput | None, written: WrittenBatch) -> str | None:
    """Why a repeated batch of a stream does not count as written, and what to do; None if it does. `given` is None if
    inputs are not compared (checkReplays=false)."""
    if batch == written.number:
        if given is None or written.input is None or given.is_same(written.input):
            return None
        what = (
            f"batch {batch} of query {query} was written already, with other input: {written.input} then, {given} now."
        )
    else:
        what = f"batch {batch} of query {query} is older than batch {written.number}, which was written already."
    why = (
        " The checkpoint is older than the output: an older copy was restored, a power cut lost its newest files, or"
        " another run of this query is active. No row of this batch was written."
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
        "written. Give new rows a higher txnVersion; do not write old rows again"
    )


def _way_out(written: BatchInput | None) -> str:
    begin = " What to do: restore the newer checkpoint; or start the query with a new checkpointLocation and "
    if written is not None and written.ends:
        state = " (state of windows and joins is then empty)"
        return f"{begin}startingOffsets={_joined(written.ends)}, the end of the output{state}"
    return f"{begin}startingOffsets at the end of the output, which its last rows show"


def _same_after_all(given: BatchInput | None) -> str:
    if given is None or given.kind != ROWS:
        return ""
    return (
        " If the input is the same, but the query gives other rows each time (rand(), uuid()) or was changed: set "
        "checkReplays=false; the written rows stay"
    )


def _joined(ends: Sequence[str]) -> str:
    return " and, for the next source, ".join(ends)


def _mark(kind: str, text: str) -> str:
    return hashlib.sha256(f"{kind} {text}".encode()).hexdigest()[:MARK_DIGITS]
