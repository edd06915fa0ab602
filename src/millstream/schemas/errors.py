"""What can go wrong between bytes and typed columns. A bad record is not among it: that is a text in a column."""


class SchemaError(ValueError):
    """A schema, an option or a format that cannot work; the text says what to do."""


class EncodingError(SchemaError):
    """A row that its schema has no room for."""


class RegistryError(SchemaError):
    """The registry answered, and not with what was asked for; the text names subject or id, and the address."""

    def __init__(self, text: str, status: int = 0, code: int = 0) -> None:
        super().__init__(text)
        self.status = status
        self.code = code

    def __reduce__(self) -> tuple[type["RegistryError"], tuple[str, int, int]]:
        return type(self), (str(self), self.status, self.code)


class SchemaNotFoundError(RegistryError):
    """No such subject, version or id."""


class RegistryUnreachableError(RegistryError):
    """No answer within the time allowed. Never a reason to call a record bad: it may be read once there is one."""
