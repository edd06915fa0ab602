"""Failures of a pipeline in terms of its file: the part, the line, and the reason from Spark or from user code."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from millstream.pipeline.model import Sql


@dataclass(frozen=True, slots=True)
class Part:
    """A source, step or sink of the file, for messages."""

    kind: str
    name: str
    line: int
    query: Sql | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}"


class PipelineFailedError(Exception):
    """The pipeline cannot run, or failed; `exit_code` is for the command."""

    exit_code = 1


class PartFailedError(PipelineFailedError):
    """A part of the file failed: its line, and the reason from Spark or user code."""

    def __init__(self, part: Part, reason: str, line: int | None = None) -> None:
        self.part = part
        self.line = part.line if line is None else line
        self.reason = reason
        super().__init__(f"{part}: {reason}")


@contextmanager
def attributed_to(part: Part) -> Iterator[None]:
    """Raises errors of Spark and of user code as PartFailedError with the part and its line."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PipelineFailedError:
        raise
    except PySparkException as error:
        raise PartFailedError(part, spark_reason(error), _line_in(part, error)) from error
    except Exception as error:
        if _is_from_py4j(error):
            raise PartFailedError(part, spark_reason(error)) from error
        raise PartFailedError(part, f"{type(error).__name__}: {error}") from error


_CAUSES = re.compile(
    r"^(?:Caused by: |: )?(?:[\w.$]*[.$])?([A-Z]\w*(?:Error|Exception|Expired|Interrupt)): (.*)$", re.MULTILINE
)
_UNTELLING = frozenset(
    ("SparkException", "StreamingQueryException", "PythonException", "ExecutionException", "Py4JJavaError", "Exception")
)


def spark_reason(error: BaseException) -> str:
    """The cause in an error of Spark with Spark's suggestion, without plans and stack traces."""
    text = str(error).split("=== Streaming Query ===")[0]
    cause = _python_cause(text)
    if cause is not None:
        return cause
    causes = [(kind, what.strip()) for kind, what in _CAUSES.findall(text)]
    telling = [what for kind, what in causes if kind not in _UNTELLING and what]
    # Spark's own errors have their class in brackets and are clear; their causes are often not.
    classed = [what for _, what in causes if what.startswith("[")]
    if not text.startswith("[") and (classed or telling):
        return _tidy(classed[-1] if classed else telling[-1])
    return _tidy(text)


def _python_cause(text: str) -> str | None:
    """The last line of a Python traceback from a worker, source or sink."""
    if "Traceback (most recent call last)" not in text:
        return None
    last: str | None = None
    for block in text.split("Traceback (most recent call last)")[1:]:
        for line in block.splitlines():
            match = re.match(r"(?:[\w.]+\.)?([A-Za-z_]\w*): (.+)$", line)
            if match and not line.startswith((" ", "\t")):
                last = f"{match[1]}: {match[2]}"
    if last is None:
        return None
    # Our errors are sentences, which do not need the class before them.
    kind, _, what = last.partition(": ")
    return what if kind.endswith("Error") and len(what.split()) > 4 else last


def _tidy(text: str) -> str:
    """Without the class of the error, the SQL state, the query's text and the plan."""
    text = re.sub(r"^\[[A-Z0-9_.]+\]\s*", "", text.strip())
    text = text.split("\n\nJVM stacktrace:")[0].split("\n== SQL")[0]
    text = re.sub(r"\s*SQLSTATE: \w{5}.*$", "", text, flags=re.DOTALL)
    first = text.split("\n\n")[0]
    first = first.split(";\n")[0]
    return " ".join(first.split()).rstrip(";")


def _line_in(part: Part, error: BaseException) -> int | None:
    """The line of the file for a mistake in a SQL step, from its position in the query."""
    if part.query is None:
        return None
    query = part.query.query
    context = getattr(error, "getQueryContext", None)
    for each in (context() if context is not None else None) or []:
        try:
            start = int(each.startIndex())
        except Exception:  # nosec B112: Spark gives no position
            continue
        if 0 <= start <= len(query):
            return part.query.query_line + query[:start].count("\n")
    match = re.search(r"line (\d+),? pos", str(error))
    return None if match is None else part.query.query_line + int(match[1]) - 1


def _is_from_py4j(error: BaseException) -> bool:
    return type(error).__module__.split(".")[0] == "py4j"
