"""Compares two versions of a schema line by line, and shows them side by side as text."""

import difflib
import json
import re
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

_WORDS = re.compile(r"\w+|\W")
_LONGEST_LINE = 500
"""The time to compare two lines grows with the square of their length."""


class Change(StrEnum):
    SAME = "same"
    REMOVED = "removed"
    ADDED = "added"
    CHANGED = "changed"


class Side(NamedTuple):
    number: int
    """Line number, from 1."""
    parts: tuple[tuple[str, bool], ...]
    """Parts of the line, each with a flag: differs from the other side."""

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.parts)


class Row(NamedTuple):
    change: Change
    before: Side | None
    after: Side | None


def readable(text: str) -> str:
    """A schema for display: JSON indented in its order, others unchanged."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text.rstrip("\n")


def side_by_side(before: str, after: str) -> list[Row]:
    old, new = before.splitlines(), after.splitlines()
    rows: list[Row] = []
    for what, old_from, old_to, new_from, new_to in difflib.SequenceMatcher(
        None, old, new, autojunk=False
    ).get_opcodes():
        olds = list(enumerate(old[old_from:old_to], old_from + 1))
        news = list(enumerate(new[new_from:new_to], new_from + 1))
        if what == "equal":
            rows += [Row(Change.SAME, _plain(*left), _plain(*right)) for left, right in zip(olds, news, strict=True)]
        else:
            rows += _replaced(olds, news)
    return rows


def counts(rows: list[Row]) -> tuple[int, int]:
    """Numbers of added and removed lines; a changed line counts as both."""
    came = sum(row.change in (Change.ADDED, Change.CHANGED) for row in rows)
    went = sum(row.change in (Change.REMOVED, Change.CHANGED) for row in rows)
    return came, went


def _replaced(olds: list[tuple[int, str]], news: list[tuple[int, str]]) -> Iterator[Row]:
    """Similar lines are paired; others are alone in their row."""
    while olds and news:
        (number, left), (other_number, right) = olds[0], news[0]
        if not _alike(left.strip(), right.strip()):
            if len(olds) > len(news):
                yield Row(Change.REMOVED, _plain(*olds.pop(0)), None)
                continue
            if len(news) > len(olds):
                yield Row(Change.ADDED, None, _plain(*news.pop(0)))
                continue
            yield Row(Change.REMOVED, _plain(*olds.pop(0)), None)
            yield Row(Change.ADDED, None, _plain(*news.pop(0)))
            continue
        del olds[0], news[0]
        before, after = _marked(left, right)
        yield Row(Change.CHANGED, Side(number, before), Side(other_number, after))
    for number, text in olds:
        yield Row(Change.REMOVED, _plain(number, text), None)
    for number, text in news:
        yield Row(Change.ADDED, None, _plain(number, text))


def _alike(left: str, right: str) -> bool:
    if max(len(left), len(right)) > _LONGEST_LINE:
        return False
    return difflib.SequenceMatcher(None, left, right, autojunk=False).ratio() >= 0.5


def _marked(left: str, right: str) -> tuple[tuple[tuple[str, bool], ...], tuple[tuple[str, bool], ...]]:
    """Marks differences by words, because common letters of two words do not matter."""
    lefts, rights = _WORDS.findall(left), _WORDS.findall(right)
    before: list[tuple[str, bool]] = []
    after: list[tuple[str, bool]] = []
    for what, left_from, left_to, right_from, right_to in difflib.SequenceMatcher(
        None, lefts, rights, autojunk=False
    ).get_opcodes():
        if left_to > left_from:
            before.append(("".join(lefts[left_from:left_to]), what != "equal"))
        if right_to > right_from:
            after.append(("".join(rights[right_from:right_to]), what != "equal"))
    return tuple(before), tuple(after)


def _plain(number: int, text: str) -> Side:
    return Side(number, ((text, False),))
