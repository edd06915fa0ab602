"""Log directories for the cleaner's tests, the same as storage's own; and its inner loops, compiled and not."""

import importlib
from types import ModuleType

import pytest

from millstream.node.storage.cleaner import compiled, key_map, records
from tests.unit.node.storage.conftest import disk, make_node, node, root

__all__ = ["disk", "make_node", "node", "root"]


def compiled_loops() -> ModuleType:
    try:
        return importlib.import_module("millstream.node.storage.cleaner._loops")
    except ImportError:
        pytest.skip("the cleaner's compiled loops were not built here (no C compiler at installation)")


@pytest.fixture(params=["compiled", "pure"])
def inner_loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    is_compiled = request.param == "compiled"
    loops = compiled_loops() if is_compiled else None
    monkeypatch.setattr(compiled, "KeyMap", loops.KeyMap if loops else key_map.KeyMap)
    monkeypatch.setattr(compiled, "kept_records", loops.kept_records if loops else records.kept_records)
