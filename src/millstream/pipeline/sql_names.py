"""The tables that a SQL query reads, and obvious mistakes in it, found without Spark.

This is not a parser: it splits the text into words, strings and signs, and follows FROM, JOIN and WITH. Spark checks
the rest (`validate --deep`). ADR 7 says why sqlglot is not used.
"""

import re
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?\*/)
      | (?P<open_comment>/\*)
      | (?P<text>[rR]?'(?:[^'\\]|\\.|'')*'|[rR]?"(?:[^"\\]|\\.|"")*")
      | (?P<open_text>['"])
      | (?P<quoted>`(?:[^`]|``)*`)
      | (?P<open_quoted>`)
      | (?P<word>[A-Za-z_\u0080-\uffff][A-Za-z0-9_\u0080-\uffff]*)
      | (?P<number>\d[\d.]*[A-Za-z]*)
      | (?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_CLOSERS = {")": "(", "]": "["}
# fmt: off
_NO_ALIAS = frozenset((
    "where", "group", "having", "order", "sort", "cluster", "distribute", "limit", "offset", "window", "union",
    "except", "intersect", "minus", "on", "using", "pivot", "unpivot", "select", "qualify", "tablesample",
    "join", "inner", "cross", "left", "right", "full", "semi", "anti", "outer", "natural", "lateral",
))
# fmt: on


class SqlError(ValueError):
    """The text cannot be SQL; `offset` is where."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    offset: int

    @property
    def lower(self) -> str:
        return self.text.lower() if self.kind == "word" else ""


@dataclass(frozen=True, slots=True)
class TableName:
    name: str
    """As written, without back-quotes; a name of several parts has its dots."""
    offset: int


def tables_read(query: str) -> list[TableName]:
    """The tables a query reads, each once, in the order of the text. Raises SqlError."""
    found: dict[str, TableName] = {}
    for table in table_mentions(query):
        found.setdefault(table.name.lower(), table)
    return list(found.values())


def table_mentions(query: str) -> list[TableName]:
    """The same, each table as often as the query reads it. Raises SqlError."""
    tokens = _tokens(query)
    if not tokens:
        raise SqlError("the query is empty", 0)
    first = next((token for token in tokens if token.text != "("), tokens[0])
    if first.lower not in ("select", "with", "from", "values", "table"):
        raise SqlError(
            f"a step's query must be a SELECT (or WITH … SELECT); this begins with {first.text!r}", first.offset
        )
    for token in tokens[:-1]:
        if token.text == ";":
            raise SqlError("one query per step: remove the text after `;`", token.offset)
    own = _common_tables(tokens)
    found = [table for table in _after_from(tokens) if table.name.lower() not in own]
    return sorted(found, key=lambda table: table.offset)


def check_expression(expression: str) -> None:
    """Whether an expression (a condition, an aggregate) has its quotes and brackets in order. Raises SqlError."""
    tokens = _tokens(expression)
    if not tokens:
        raise SqlError("the expression is empty", 0)
    for token in tokens:
        if token.text == ";":
            raise SqlError("an expression has no `;`", token.offset)
    if tokens[0].lower == "select":
        raise SqlError("an expression is wanted here, not a query", 0)


def plain_column(expression: str) -> str | None:
    """The column's name if the expression is nothing but a column."""
    stripped = expression.strip()
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", stripped):
        return stripped
    return stripped[1:-1] if re.fullmatch(r"`[^`.]+`", stripped) else None


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    brackets: list[_Token] = []
    for match in _TOKEN.finditer(text):
        kind, part = match.lastgroup or "", match.group()
        if kind == "space":
            continue
        if kind.startswith("open_"):
            what = {"open_comment": "comment", "open_text": "text", "open_quoted": "quoted name"}[kind]
            raise SqlError(f"the {what} that begins here has no end", match.start())
        token = _Token(kind, part, match.start())
        if part in ("(", "[") and kind == "sign":
            brackets.append(token)
        elif part in _CLOSERS and kind == "sign" and (not brackets or brackets.pop().text != _CLOSERS[part]):
            raise SqlError(f"this {part!r} closes nothing", match.start())
        tokens.append(token)
    if brackets:
        raise SqlError(f"this {brackets[-1].text!r} is not closed", brackets[-1].offset)
    return tokens


def _common_tables(tokens: list[_Token]) -> set[str]:
    """Names given by WITH: `name AS (`, `name (a, b) AS (`."""
    if not any(token.lower == "with" for token in tokens):
        return set()
    names = set()
    for index, token in enumerate(tokens[:-2]):
        before = tokens[index - 1] if index else None
        if token.kind not in ("word", "quoted") or before is None:
            continue
        if before.lower not in ("with", "recursive") and before.text != ",":
            continue
        after = index + 1
        if tokens[after].text == "(":
            after = _closing(tokens, after) + 1
        if after + 1 < len(tokens) and tokens[after].lower == "as" and tokens[after + 1].text == "(":
            names.add(token.text.strip("`").lower())
    return names


def _closing(tokens: list[_Token], opening: int) -> int:
    depth = 0
    for index in range(opening, len(tokens)):
        depth += {"(": 1, ")": -1}.get(tokens[index].text, 0)
        if depth == 0:
            return index
    return len(tokens) - 1


def _after_from(tokens: list[_Token]) -> list[TableName]:
    found: list[TableName] = []
    for index, token in enumerate(tokens):
        if token.lower not in ("from", "join") or _is_function_from(tokens, index):
            continue
        at = index + 1
        while at < len(tokens):
            at = _table_at(tokens, at, found)
            at = _past_alias(tokens, at)
            if at >= len(tokens) or tokens[at].text != "," or token.lower == "join":
                break
            at += 1
    return found


def _is_function_from(tokens: list[_Token], index: int) -> bool:
    """`extract(day FROM at)`, `trim(BOTH ' ' FROM name)`, `IS DISTINCT FROM x`: not the FROM of a query."""
    if tokens[index].lower != "from":
        return False
    if index and tokens[index - 1].lower == "distinct" and index > 1 and tokens[index - 2].lower in ("is", "not"):
        return True
    depth = 0
    for at in range(index - 1, -1, -1):
        text = tokens[at].text
        depth += {")": 1, "(": -1}.get(text, 0)
        if depth < 0:
            name = tokens[at - 1].lower if at else ""
            return name in ("extract", "trim", "substring", "substr", "overlay")
        if depth == 0 and tokens[at].lower == "select":
            return False
    return False


def _table_at(tokens: list[_Token], at: int, found: list[TableName]) -> int:
    """Read one entry of a FROM list; a subquery is left to the outer loop, which meets its own FROM."""
    while at < len(tokens) and tokens[at].lower in ("lateral", "only"):
        at += 1
    if at >= len(tokens):
        return at
    token = tokens[at]
    if token.text == "(":
        inside = tokens[at + 1] if at + 1 < len(tokens) else token
        if inside.lower not in ("select", "with", "values", "from", "(", "table") and inside.kind in ("word", "quoted"):
            _table_at(tokens, at + 1, found)
        return _closing(tokens, at) + 1
    if token.kind not in ("word", "quoted") or token.lower in ("values", "view"):
        return at + 1
    parts = [token.text.strip("`")]
    at += 1
    while at + 1 < len(tokens) and tokens[at].text == "." and tokens[at + 1].kind in ("word", "quoted"):
        parts.append(tokens[at + 1].text.strip("`"))
        at += 2
    if at < len(tokens) and tokens[at].text == "(":
        return _closing(tokens, at) + 1  # a function that gives a table: range(10), explode(x)
    found.append(TableName(".".join(parts), token.offset))
    return at


def _past_alias(tokens: list[_Token], at: int) -> int:
    if at < len(tokens) and tokens[at].lower == "as":
        at += 1
    if at < len(tokens) and tokens[at].kind in ("word", "quoted"):
        if tokens[at].lower in _NO_ALIAS:
            return at
        at += 1
        if at < len(tokens) and tokens[at].text == "(":
            at = _closing(tokens, at) + 1
    return at
