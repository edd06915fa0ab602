"""What a subject may be set to: compatibility levels and modes."""

from enum import StrEnum


class Level(StrEnum):
    """Who must be able to read what: the new schema old data, an old schema new data, or both."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def new_reads_old(self) -> bool:
        return self.value.startswith(("BACKWARD", "FULL"))

    @property
    def old_reads_new(self) -> bool:
        return self.value.startswith(("FORWARD", "FULL"))

    @property
    def transitive(self) -> bool:
        """All earlier versions count, not only the last."""
        return self.value.endswith("_TRANSITIVE")


class Mode(StrEnum):
    """Who may write: everybody, nobody, or an import that brings its own ids."""

    READWRITE = "READWRITE"
    READONLY = "READONLY"
    READONLY_OVERRIDE = "READONLY_OVERRIDE"
    IMPORT = "IMPORT"

    @property
    def read_only(self) -> bool:
        return self in (Mode.READONLY, Mode.READONLY_OVERRIDE)


DEFAULT_LEVEL = Level.BACKWARD
DEFAULT_MODE = Mode.READWRITE
