"""What can go wrong with a lake table, each with the next step in its message."""


class LakeError(Exception):
    """A table cannot be read or written; the text says which, why, and what to do."""


class LakeOptionError(LakeError):
    """An option is unknown, missing, or makes no sense."""


class NoTableError(LakeError):
    """There is no table where one was expected."""


class SchemaChangeError(LakeError):
    """Rows do not fit the table, and the table may not or cannot change so that they would."""


class StaleWriteError(LakeError):
    """A write whose number was used for other rows, or is older than the newest: it is not in the table, and may not be
    counted as if it were."""


class CommitConflictError(LakeError):
    """Other writers were faster again and again; nothing of this commit is in the table."""
