"""Expectations of a pipeline: rules on rows, as filters, counts and dead letters.

A condition that is null counts as not met. A row that does not meet several rules gets the strictest of their actions:
fail, quarantine, drop, warn. Counts come from Spark's observations: a batch counts once, when it is complete; a batch
that failed and is repeated counts once. A task that Spark repeats after it has lost its shuffle files may count twice.

The rows of `quarantine` become dead letters (`dead_letters.py`); which query counts a rule is decided in `sharing.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millstream.pipeline.engine.decoding import OFFSET, PARTITION, TOPIC, quoted
from millstream.pipeline.model import Action, Expectation, Sink, Source, Step

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Part = Source | Step | Sink
Observe = Callable[["DataFrame", str, "list[Column]"], "DataFrame"]
"""Adds an observation with a name to a DataFrame."""

_OBSERVED = "expect:"
_ROWS = "rows"
_RULE = "rule:"


def kind_of(part: Part) -> str:
    """sink, or part: names of sinks may be the same as those of sources and steps."""
    return "sink" if isinstance(part, Sink) else "part"


def observation_of(part: Part) -> str:
    return f"{_OBSERVED}{kind_of(part)}:{part.name}"


@dataclass(frozen=True, slots=True)
class RuleCount:
    """How many rows of a batch a rule saw, and how many did not meet it."""

    kind: str
    part: str
    rule: str
    rows: int
    violations: int


def counts_in(observed: Mapping[str, Any]) -> list[RuleCount]:
    """The counts of rules in the observed metrics of a batch."""
    found = []
    for name, values in observed.items():
        if not name.startswith(_OBSERVED) or not values:
            continue
        kind, _, part = name.removeprefix(_OBSERVED).partition(":")
        rows = int(values.get(_ROWS) or 0)
        for column, value in values.items():
            if column.startswith(_RULE):
                found.append(RuleCount(kind, part, column.removeprefix(_RULE), rows, int(value or 0)))
    return found


def checked(part: Part, rows: "DataFrame", observe: Observe | None) -> "DataFrame":
    """The rows that meet the rules, or whose rules only warn. `observe` is None if another query counts."""
    from pyspark.sql.functions import count, count_if, expr, lit

    if not part.expect:
        return rows
    if observe is not None:
        counts = [count(lit(1)).alias(_ROWS)]
        counts += [count_if(expr(_violates(rule))).alias(f"{_RULE}{rule.name}") for rule in part.expect]
        rows = observe(rows, observation_of(part), counts)
    for rule in _with(part, Action.FAIL):
        message = f"'expectation {_text(rule.name)} of {_described(part)} is not met: {_text(rule.condition)}'"
        refused = f"CAST(raise_error(concat({message}, {_origin(rows)})) AS BOOLEAN)"
        rows = rows.where(f"CASE WHEN {_violates(rule)} THEN {refused} ELSE true END")
    left_out = [_violates(rule) for rule in (*_with(part, Action.DROP), *_with(part, Action.QUARANTINE))]
    return rows.where(" AND ".join(f"NOT {each}" for each in left_out)) if left_out else rows


def quarantined(part: Part, rows: "DataFrame") -> "tuple[DataFrame, Column]":
    """The rows that go to quarantine, and the reason for each."""
    from pyspark.sql.functions import expr

    rules = _with(part, Action.QUARANTINE)
    reasons = ", ".join(
        f"CASE WHEN {_violates(rule)} THEN '{_text(rule.name)} ({_text(rule.condition)})' END" for rule in rules
    )
    reason = f"concat('expectations of {_described(part)} that are not met: ', concat_ws(', ', {reasons}))"
    return rows.where(" OR ".join(_violates(rule) for rule in rules)), expr(reason)


def has(part: Part, action: Action) -> bool:
    return bool(_with(part, action))


def _with(part: Part, action: Action) -> "tuple[Expectation, ...]":
    return tuple(rule for rule in part.expect if rule.action is action)


def _violates(rule: Expectation) -> str:
    return f"(NOT coalesce(CAST(({rule.condition}) AS BOOLEAN), false))"


def _described(part: Part) -> str:
    return f"{'sink' if isinstance(part, Sink) else 'source or step'} {_text(part.name)}"


def _text(value: str) -> str:
    """For a SQL text in single quotes."""
    return " ".join(value.split()).replace("\\", "\\\\").replace("'", "\\'")


def _origin(rows: "DataFrame") -> str:
    """The place of the record in the log, if the row still has it."""
    known = (("topic", TOPIC), ("partition", PARTITION), ("offset", OFFSET))
    shown = [f"concat('{word} ', {quoted(name)})" for word, name in known if name in rows.columns]
    return f"concat(' (', concat_ws(' ', {', '.join(shown)}), ')')" if shown else "''"


@dataclass(frozen=True, slots=True)
class Quarantine:
    """The rows of a part that go to the dead letters, as an output of a query."""

    part: Part

    @property
    def name(self) -> str:
        return self.part.name

    @property
    def line(self) -> int:
        return self.part.line


def quarantines_of(parts: "tuple[Part, ...]") -> list[Quarantine]:
    return [Quarantine(part) for part in parts if has(part, Action.QUARANTINE)]
