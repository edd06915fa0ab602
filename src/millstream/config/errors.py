"""The one exception of this room: a setting that cannot be taken as it was written."""


class ConfigError(ValueError):
    """One clear line for a person: which setting, which value, what is allowed, and where it was written."""

    def __init__(self, message: str, *, name: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.name = name

    def at(self, place: str) -> "ConfigError":
        """The same refusal, with the file and line it came from in front."""
        return ConfigError(f"{place}: {self.message}", name=self.name)
