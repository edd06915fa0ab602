"""Whatever a file holds, reading it ends with a pipeline or with problems that have places; never with a traceback."""

import random
from pathlib import Path

import pytest
import yaml

from tests.system.pipeline.definitions import documented, look_at

_ODD: list[object] = [
    None,
    "",
    5,
    -1,
    True,
    [],
    {},
    [[]],
    {"a": {}},
    "x" * 300,
    "${",
    "${X}",
    "a: b",
    "'",
    "(",
    "every",
    ";",
    "\u2028",
    ["a", 5],
    1e99,
]


def _spoil(document: object, chance: random.Random) -> object:
    """A copy with one value, somewhere, replaced, removed or moved under another name."""
    if isinstance(document, dict) and document and chance.random() < 0.85:
        key = chance.choice(list(document))
        copy = dict(document)
        action = chance.random()
        if action < 0.1:
            del copy[key]
        elif action < 0.2:
            copy[f"{key}{chance.choice('xyz')}"] = copy.pop(key)
        else:
            copy[key] = _spoil(document[key], chance)
        return copy
    if isinstance(document, list) and document and chance.random() < 0.7:
        return [_spoil(document[0], chance), *document[1:]]
    return chance.choice(_ODD)


@pytest.mark.parametrize("seed", range(4))
def test_spoilt_files_never_raise(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    whole = documented(tmp_path)
    for _ in range(12):
        spoilt = yaml.safe_load(whole.text)
        for _ in range(chance.randint(1, 4)):
            spoilt = _spoil(spoilt, chance)
        text = yaml.safe_dump(spoilt, sort_keys=False, allow_unicode=True)
        found = look_at(tmp_path, text, KAFKA_PASSWORD="x")
        lines = len(text.splitlines()) + 1
        assert (found.pipeline is None) == found.problems.has_errors
        for problem in found.problems:
            assert 1 <= problem.position.line <= lines and problem.position.column >= 1, (problem, text)


@pytest.mark.parametrize("seed", range(4))
def test_torn_files_never_raise(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    text = documented(tmp_path).text
    for _ in range(12):
        begin = chance.randrange(len(text))
        end = min(len(text), begin + chance.randrange(60))
        torn = text[:begin] + chance.choice(("", "\t", "{", "]", "'", "\n  - ", ": ", "&a *a", "!!x ")) + text[end:]
        found = look_at(tmp_path, torn, KAFKA_PASSWORD="x")
        assert (found.pipeline is None) == found.problems.has_errors
