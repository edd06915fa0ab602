"""The errors of the Spark source and sink: each text says what is wrong, where, and what to do next."""


class SourceError(Exception):
    """A failure that the source finds. Errors of the connection (`WireError`) are raised unchanged."""


class OptionError(SourceError, ValueError):
    """An option with a wrong name or value."""


class MissingTopicError(SourceError, LookupError):
    """A topic or partition of the query does not exist."""


class DataLossError(SourceError):
    """Records that the query has not read were removed from the topic."""


class UnreadableBatchError(SourceError):
    """The records of a batch cannot be read by any consumer; the text names their offsets."""


class CheckpointError(SourceError):
    """The checkpoint belongs to another query."""


class BadRecordError(SourceError):
    """A record cannot be decoded, and `badRecords` is `fail`."""


class SinkError(Exception):
    """A failure that the sink finds. Errors of the connection (`WireError`) are raised unchanged."""
