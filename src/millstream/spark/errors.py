"""What the Spark source reports: each text says what is wrong, where, and the next step."""

from collections.abc import Iterable
from difflib import get_close_matches


class SourceError(Exception):
    """Any failure that the source itself finds; those of the wire pass through as they are."""


class OptionError(SourceError, ValueError):
    """An option with a wrong name or value."""


class MissingTopicError(SourceError, LookupError):
    """A topic or partition that is to be read does not exist."""


class DataLossError(SourceError):
    """Records that a query has not read yet are not there any more."""


class CheckpointError(SourceError):
    """A checkpoint that is not of this query."""


class BadRecordError(SourceError):
    """A record that its format cannot read, where `badRecords` is `fail`."""


class SinkError(Exception):
    """Any failure that the sink itself finds; those of the wire pass through as they are."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The name that was probably meant, whatever its upper and lower case."""
    by_lower = {each.lower(): each for each in known}
    close = get_close_matches(name[:200].lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None
