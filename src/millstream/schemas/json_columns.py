"""The tree of JSON objects for the compiled reader (`columns.py`).

It has no maps, decimals, bytes and single-precision numbers: they need rules that the reader does not know. Times are
texts for it.
"""

import pyarrow as pa

from millstream.schemas.columns import MAX_NODES, NUMBERS, Columns, Form, Need, Node, UnsupportedError, is_compiled
from millstream.schemas.json_schema import NO_RULE, Rule

_KINDS = {
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float64(): "double",
    pa.string(): "string",
}


def columns_of(kind: pa.StructType, rule: Rule = NO_RULE, *, is_closed: bool = False) -> Columns | None:
    """Reads objects of this type, with times as texts; None if it is not for the compiled reader, or there is none.

    Objects without what the rule requires are not read, also where the type does not have the required field.
    """
    if not is_compiled():
        return None
    builder = _Builder()
    try:
        builder.record(kind, rule, b"", Need.NOTHING)
    except UnsupportedError:
        return None
    return Columns(builder.tree, {}, kind, Form.JSON, is_closed=is_closed)


class _Builder:
    def __init__(self) -> None:
        self.tree: list[Node] = []

    def record(self, kind: pa.StructType, rule: Rule, name: bytes, need: Need) -> None:
        if rule.items is not None or not rule.items_nullable:
            raise UnsupportedError
        at = self._open()
        names = {field.name for field in kind}
        if len(names) < len(kind) or rule.properties.keys() - names:
            raise UnsupportedError
        for field in kind:
            own = rule.properties.get(field.name, NO_RULE)
            self._value(field.type, own, field.name.encode(), _need(rule, field.name))
        others = [each for each in rule.required if each not in names]
        for each in others:  # only its presence counts
            place = self._open()
            self.tree[place] = Node(
                NUMBERS["boolean"], is_kept=False, after=place + 1, name=each.encode(), need=_need(rule, each)
            )
        self.tree[at] = Node(
            NUMBERS["record"], children=len(kind) + len(others), after=len(self.tree), name=name, need=need
        )

    def _value(self, kind: pa.DataType, rule: Rule, name: bytes, need: Need) -> None:
        if pa.types.is_struct(kind):
            self.record(kind, rule, name, need)
            return
        at = self._open()
        if pa.types.is_list(kind):
            if rule.required or rule.properties:
                raise UnsupportedError
            element = Need.NOTHING if rule.items_nullable else Need.NOT_NULL
            self._value(kind.value_type, rule.items or NO_RULE, b"", element)
            self.tree[at] = Node(NUMBERS["array"], children=1, after=len(self.tree), name=name, need=need)
            return
        if kind not in _KINDS or not rule.says_nothing:
            raise UnsupportedError
        self.tree[at] = Node(NUMBERS[_KINDS[kind]], after=at + 1, name=name, need=need)

    def _open(self) -> int:
        if len(self.tree) >= MAX_NODES:
            raise UnsupportedError
        self.tree.append(Node(0))
        return len(self.tree) - 1


def _need(rule: Rule, name: str) -> Need:
    if name not in rule.required:
        return Need.NOTHING
    return Need.PRESENT if rule.required[name] else Need.NOT_NULL
