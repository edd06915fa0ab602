"""Errors between bytes and typed columns. A bad record is not an error: it is a text in a column."""


class SchemaError(ValueError):
    """A schema, option or format is wrong; the text has the next step."""


class EncodingError(SchemaError):
    """A row does not fit its schema."""


class RegistryError(SchemaError):
    """An error response of the registry; the text has the subject or id, and the address."""

    def __init__(self, text: str, status: int = 0, code: int = 0) -> None:
        super().__init__(text)
        self.status = status
        self.code = code

    def __reduce__(self) -> tuple[type["RegistryError"], tuple[str, int, int]]:
        return type(self), (str(self), self.status, self.code)


class SchemaNotFoundError(RegistryError):
    """The subject, version or id does not exist."""


class RegistryUnreachableError(RegistryError):
    """No response within the timeout. The record is not bad: it may be read later."""
