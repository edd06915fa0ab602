"""What the registry asks of a schema, whatever its format."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self


class InvalidSchemaError(Exception):
    """The text is no schema of its format; the message says where and why."""


class Problem(NamedTuple):
    """One reason why a reader's schema cannot read what was written with another."""

    kind: str
    """A name that tools can rely on."""
    path: str
    """Where in the reader's schema: `/` is its top."""
    text: str
    """What is wrong, and what to do."""

    def __str__(self) -> str:
        return f"{self.kind} at {self.path}: {self.text}"


class TooComplexError(Exception):
    """A comparison would take too long."""


class Budget:
    """How many steps a comparison may take: schemas can be small and yet have more paths than anybody can walk."""

    def __init__(self, steps: int = 20_000) -> None:
        self._left = steps

    def step(self, count: int = 1) -> None:
        self._left -= count
        if self._left < 0:
            raise TooComplexError


TOO_COMPLEX = Problem(
    "TOO_COMPLEX",
    "/",
    "the comparison was given up, since it takes too many steps; whether the schemas are compatible is not known: "
    "change fewer alternatives (unions, anyOf, oneOf, allOf) in one version, or register with compatibility NONE",
)


class Dependency(NamedTuple):
    """A schema that is referred to, by the name it is known under in the schema that does."""

    name: str
    text: str


class ParsedSchema(Protocol):
    """A schema that was understood."""

    @property
    def canonical(self) -> str:
        """The text that is stored: what differs only in spaces is the same."""

    def normalized(self) -> str:
        """A text that is the same for schemas that mean the same."""

    def rendered(self, form: str) -> str:
        """The text in one of the `forms` of the format."""

    def flaw(self) -> str | None:
        """A rule of the format that it breaks, so that it is not registered; None if it keeps all. A schema with a flaw
        that is stored already is still read with."""

    def problems_reading(self, writer: Self) -> list[Problem]:
        """Why this schema, as the reader's, cannot read what was written with `writer`; empty if it can."""


class SchemaFormat(Protocol):
    """One format."""

    name: str
    forms: frozenset[str]
    """What `?format=` may ask for."""

    def parse(self, text: str, dependencies: Sequence[Dependency]) -> ParsedSchema:
        """InvalidSchemaError if it cannot be understood. Dependencies come in an order in which each is complete."""
