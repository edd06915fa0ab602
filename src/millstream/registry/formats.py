"""The interface of schema formats: parsed schemas, compatibility problems, and limits on comparisons."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self


class InvalidSchemaError(Exception):
    """The text is not a valid schema; the message says where and why."""


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
    """The number of steps that a comparison may take: small schemas can have exponentially many paths."""

    def __init__(self, steps: int = 20_000) -> None:
        self._left = steps

    def step(self, count: int = 1) -> None:
        self._left -= count
        if self._left < 0:
            raise TooComplexError


TOO_COMPLEX = Problem(
    "TOO_COMPLEX",
    "/",
    "the comparison takes too many steps; it is unknown whether the schemas are compatible: "
    "change fewer alternatives (unions, anyOf, oneOf, allOf) in one version, or register with compatibility NONE",
)


class Dependency(NamedTuple):
    """A referenced schema, with the name that the referring schema uses."""

    name: str
    text: str


class ParsedSchema(Protocol):
    """A parsed schema."""

    @property
    def canonical(self) -> str:
        """The text to store: equal for texts that differ only in white space."""

    def normalized(self) -> str:
        """A text that is equal for schemas with the same meaning."""

    def rendered(self, form: str) -> str:
        """The text in one of the `forms` of the format."""

    def rule_violation(self) -> str | None:
        """A rule of the format that it breaks, so that it is not registered; None if it keeps all. A schema with a flaw
        that is stored already is still read with."""

    def problems_reading(self, writer: Self) -> list[Problem]:
        """Why this schema, as the reader's, cannot read what was written with `writer`; empty if it can."""


class SchemaFormat(Protocol):
    """One format."""

    name: str
    forms: frozenset[str]
    """Valid values of `?format=`."""

    def parse(self, text: str, dependencies: Sequence[Dependency]) -> ParsedSchema:
        """InvalidSchemaError if it cannot be understood. Dependencies come in an order in which each is complete."""
