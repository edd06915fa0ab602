"""What every decision of the controller gives back: the records to write, and an answer for each thing asked.

A decision changes nothing. The records are written to the metadata log as one batch; they are in force once they are
applied to the image.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.metadata.records import MetadataRecord

R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Decision(Generic[R_co]):
    records: tuple[MetadataRecord, ...]
    """Empty if nothing is to change, or if the request was only to be checked."""
    results: tuple[R_co, ...]
    """One for each thing that was asked, in the same order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How it went: NONE, or Kafka's code and a sentence that says what to do."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def refusal(error: KafkaError) -> tuple[ErrorCode, str]:
    return error.code, error.message
