"""Errors of lake tables; each message has the next step."""


class LakeError(Exception):
    """A table cannot be read or written; the text has the table, the reason and the next step."""


class LakeOptionError(LakeError):
    """An option is unknown, missing or wrong."""


class NoTableError(LakeError):
    """The table does not exist."""


class SchemaChangeError(LakeError):
    """Rows do not fit the table, and its schema cannot or may not be changed."""


class StaleWriteError(LakeError):
    """The number of a write was used for other rows, or is older than the newest. The write is not in the table."""


class CommitConflictError(LakeError):
    """Other writers won all attempts; this commit is not in the table."""
