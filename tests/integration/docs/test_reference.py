"""The generated reference is current, and covers what docs/public.md lists."""

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.repository import REPOSITORY

ROOT = REPOSITORY


@pytest.fixture
def generate_reference(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    yield importlib.import_module("generate_reference")
    del sys.modules["generate_reference"]


@pytest.mark.parametrize("name", ["python.md", "cli.md", "rest.md"])
def test_the_reference_is_current(generate_reference: ModuleType, name: str) -> None:
    written = (generate_reference.TARGET / name).read_text()
    page = getattr(generate_reference, name.replace(".md", "_page"))
    assert written == page(), "run python tools/generate_reference.py"


@pytest.mark.parametrize("module", ["millstream.client", "millstream.admin", "millstream.testing"])
def test_every_exported_name_is_in_the_reference(generate_reference: ModuleType, module: str) -> None:
    page = generate_reference.python_page()
    names = generate_reference.exported(module)
    assert names
    for name in names:
        assert name in page, f"{module}.{name}"
        assert generate_reference.definition(module, name) is not None, f"{module}.{name}"


def test_the_page_on_what_is_public_names_the_public_modules(generate_reference: ModuleType) -> None:
    page = (ROOT / "docs" / "public.md").read_text()
    for module in (
        "millstream.connect",
        "millstream.client",
        "millstream.admin",
        "millstream.testing",
        "millstream.spark",
    ):
        assert f"`{module}`" in page
