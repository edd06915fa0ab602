"""Errors of a pass over a log. In their own file, because the compiled loops import them."""


class UncleanableError(Exception):
    """The log has a batch that cannot be read; the log is left as it is."""


class MalformedBatchError(UncleanableError):
    """The records of one batch cannot be read, although its checksum is right: a client wrote it so. The batch is kept
    as it is."""


class PartlyMappedError(UncleanableError):
    """A record in the middle of a batch cannot be read, and the map has the records before it."""
