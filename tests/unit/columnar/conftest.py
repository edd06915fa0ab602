"""Each test that asks for `implementation` runs twice: in plain Python, and compiled where that was built."""

from types import ModuleType

import pytest

from millstream.columnar import _pure
from millstream.columnar.compiled import compiled_or_none


@pytest.fixture(params=["pure", "compiled"])
def implementation(request: pytest.FixtureRequest) -> ModuleType:
    if request.param == "pure":
        return _pure
    return compiled_or_none() or pytest.skip("the compiled module is not built here: pip install -e .")
