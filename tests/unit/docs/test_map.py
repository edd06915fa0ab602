"""The map of the files is the one the modules give, and every module says what it is for."""

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.repository import REPOSITORY

ROOT = REPOSITORY


@pytest.fixture
def generate_map(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import generate_map

    yield generate_map
    del sys.modules["generate_map"]


def test_the_map_is_up_to_date(generate_map: ModuleType) -> None:
    assert generate_map.TARGET.read_text() == generate_map.render(), "run python tools/generate_map.py"


def test_every_module_says_what_it_is_for(generate_map: ModuleType) -> None:
    silent = [path for path in generate_map.SOURCE.rglob("*.py") if not generate_map.first_sentence(path)]
    assert not silent
