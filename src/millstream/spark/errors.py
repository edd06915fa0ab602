"""The errors of the Spark source and sink: each text says what is wrong, where, and what to do next."""

from collections.abc import Iterable
from difflib import get_close_matches


class SourceError(Exception):
    """A failure that the source finds. Errors of the connection (`WireError`) are raised unchanged."""


class OptionError(SourceError, ValueError):
    """An option with a wrong name or value."""


class MissingTopicError(SourceError, LookupError):
    """A topic or partition of the query does not exist."""


class DataLossError(SourceError):
    """Records that the query has not read are gone."""


class UnreadableBatchError(SourceError):
    """The records of a batch cannot be read by any consumer; the text names their offsets."""


class CheckpointError(SourceError):
    """The checkpoint belongs to another query."""


class BadRecordError(SourceError):
    """A record cannot be decoded, and `badRecords` is `fail`."""


class SinkError(Exception):
    """A failure that the sink finds. Errors of the connection (`WireError`) are raised unchanged."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The most similar known name, compared without case; None if none is similar."""
    by_lower = {each.lower(): each for each in known}
    close = get_close_matches(name[:200].lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None
