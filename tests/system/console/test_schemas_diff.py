"""Two versions of a schema side by side."""

import json

from millstream.console.schemas.diff import Change, counts, readable, side_by_side


def test_schemas_are_laid_out_before_they_are_compared() -> None:
    assert readable('{"type":"record","name":"Ü"}') == '{\n  "type": "record",\n  "name": "Ü"\n}'
    assert readable('syntax = "proto3";\n') == 'syntax = "proto3";'


def test_equal_schemas_have_no_changes() -> None:
    rows = side_by_side("a\nb", "a\nb")
    assert [row.change for row in rows] == [Change.SAME, Change.SAME]
    assert counts(rows) == (0, 0)


def test_lines_come_and_go_and_change() -> None:
    before = readable(json.dumps({"fields": [{"name": "id", "type": "int"}, {"name": "gone", "type": "string"}]}))
    after = readable(json.dumps({"fields": [{"name": "id", "type": "long"}], "doc": "new"}))
    rows = side_by_side(before, after)
    changed = next(row for row in rows if row.change is Change.CHANGED and row.before and "int" in row.before.text)
    assert changed.before is not None and changed.after is not None
    assert changed.after.text.strip() == '"type": "long"'
    assert any(marked for _, marked in changed.after.parts)
    assert any(row.after is not None and "new" in row.after.text for row in rows)
    # Whatever is marked how, both sides are there whole and in order.
    assert "\n".join(row.before.text for row in rows if row.before) == before
    assert "\n".join(row.after.text for row in rows if row.after) == after
    assert [row.before.number for row in rows if row.before] == list(range(1, len(before.splitlines()) + 1))


def test_one_long_line_is_not_compared_letter_by_letter() -> None:
    rows = side_by_side("x" * 200_000, "y" + "x" * 200_000)
    assert {row.change for row in rows} == {Change.REMOVED, Change.ADDED}
