"""Which implementation is chosen, and that a machine with a compiler has the compiled one."""

import shutil

import pytest

from millstream.columnar import _pure
from millstream.columnar.compiled import choose, compiled_or_none
from millstream.compilation import VARIABLE


def test_the_plain_one_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "refuse")
    assert choose() is _pure
    monkeypatch.setenv(VARIABLE, "auto")
    assert choose() is (compiled_or_none() or _pure)
    monkeypatch.delenv(VARIABLE)
    assert choose() is (compiled_or_none() or _pure)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no compiler here")
def test_it_was_built_where_it_could_be() -> None:
    # The build leaves it out without an error where it fails, so this is where a failure shows.
    assert compiled_or_none() is not None, "pip install -e . did not build src/millstream/columnar/_fast_*.pyx"
