"""What is wrong with a pipeline's file: every mistake with its place, collected, so that all are told at once."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A place in the file; both count from one, as editors do."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Problem:
    place: Place
    severity: Severity
    message: str

    def text(self, file: str) -> str:
        return f"{file}:{self.place.line}:{self.place.column}: {self.severity}: {self.message}"


class Problems:
    """Collects; a reader goes on after a mistake, with a stand-in for what it could not read."""

    def __init__(self) -> None:
        self._found: list[Problem] = []

    def error(self, place: Place, message: str) -> None:
        self._add(Problem(place, Severity.ERROR, message))

    def warning(self, place: Place, message: str) -> None:
        self._add(Problem(place, Severity.WARNING, message))

    def _add(self, problem: Problem) -> None:
        if problem not in self._found:
            self._found.append(problem)

    @property
    def has_errors(self) -> bool:
        return any(problem.severity is Severity.ERROR for problem in self._found)

    def __iter__(self) -> Iterator[Problem]:
        """In the order of the file."""
        return iter(sorted(self._found, key=lambda problem: (problem.place, problem.severity, problem.message)))

    def __len__(self) -> int:
        return len(self._found)


class InvalidPipelineError(Exception):
    """The file is not a pipeline that could run; the text has every mistake on a line of its own."""

    def __init__(self, file: str, problems: Problems) -> None:
        self.file = file
        self.problems = tuple(problems)
        super().__init__("\n".join(problem.text(file) for problem in self.problems))


def nearest(name: str, known: Collection[str], *, noun: str = "one of") -> str:
    """The end of a message about an unknown name: the nearest one that exists, or all of them."""
    close = get_close_matches(name.lower(), list(known), n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    if not known:
        return "there is none"
    return f"{noun} {', '.join(sorted(known))}"
