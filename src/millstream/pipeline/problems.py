"""Problems of a pipeline's file: each with its position, collected, so that all are reported at once."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum

from millstream.common.close_match import did_you_mean


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A position in the file; lines and columns count from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Problem:
    position: Position
    severity: Severity
    message: str

    def text(self, file: str) -> str:
        return f"{file}:{self.position.line}:{self.position.column}: {self.severity}: {self.message}"


class Problems:
    """Collects problems. A reader continues after a mistake with a default in place of the wrong value."""

    def __init__(self) -> None:
        self._found: list[Problem] = []

    def error(self, position: Position, message: str) -> None:
        self._add(Problem(position, Severity.ERROR, message))

    def warning(self, position: Position, message: str) -> None:
        self._add(Problem(position, Severity.WARNING, message))

    def _add(self, problem: Problem) -> None:
        if problem not in self._found:
            self._found.append(problem)

    @property
    def has_errors(self) -> bool:
        return any(problem.severity is Severity.ERROR for problem in self._found)

    def __iter__(self) -> Iterator[Problem]:
        """In the order of the file."""
        return iter(sorted(self._found, key=lambda problem: (problem.position, problem.severity, problem.message)))

    def __len__(self) -> int:
        return len(self._found)


class InvalidPipelineError(Exception):
    """The file is not a valid pipeline; the text has one line for each mistake."""

    def __init__(self, file: str, problems: Problems) -> None:
        self.file = file
        self.problems = tuple(problems)
        super().__init__("\n".join(problem.text(file) for problem in self.problems))


def nearest(name: str, known: Collection[str], *, noun: str = "one of") -> str:
    """The end of a message about an unknown name: the most similar known name, or all of them."""
    return did_you_mean(name, known, otherwise=f"{noun} {', '.join(sorted(known))}" if known else "none exists")
