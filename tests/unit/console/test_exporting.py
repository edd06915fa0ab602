"""Rows as files: what a spreadsheet could take for a formula is text."""

import csv
import io
import json

import pytest

from millstream.console.exporting import export

_FORMULAS = ('=HYPERLINK("https://example.com")', "+1+1", "-2+3", "@SUM(A1)", "\t=1", "-", "=1")
_PLAIN = ("orders", "-5", "+1.5e3", "5 - 3", "a=b", "", "'=1")


@pytest.mark.parametrize("text", [*_FORMULAS, *_PLAIN])
def test_a_text_in_csv_is_no_formula(text: str) -> None:
    rows = [{"name": text, "number": -7}]
    ((_, _), (name, number)) = csv.reader(io.StringIO(export("csv", ["name", "number"], rows).decode(), newline=""))
    assert (name, number) == (f"'{text}" if text in _FORMULAS else text, "-7")
    assert json.loads(export("json", ["name", "number"], rows)) == rows


def test_names_of_columns_and_other_values_are_no_formulas_either() -> None:
    data = export("csv", ["=1+1"], [{"=1+1": ["=2"]}, {"=1+1": None}]).decode()
    assert list(csv.reader(io.StringIO(data))) == [["'=1+1"], ["['=2']"], [""]]
