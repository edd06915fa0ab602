"""The choice between compiled modules and plain Python, and the record of what a library was built from."""

import importlib
import sys
from pathlib import Path

import pytest

from millstream import compilation
from millstream.compilation import DEPENDENCIES, MODULES, VARIABLE, BuildRecord


def tree(root: Path) -> Path:
    for package in DEPENDENCIES:
        (root / package).mkdir(parents=True)
        (root / package / "part.py").write_text(f"NAME = {package!r}\n")
    (root / "compilation.py").write_text("")
    return root


def built(package: Path) -> BuildRecord:
    record = BuildRecord(package)
    record.note("tools 1")
    record.write()
    return record


def test_all_modules_exist_and_are_in_order() -> None:
    package = Path(compilation.__file__).parent
    assert [name for name in MODULES if not compilation.source_of(name, package).is_file()] == []
    assert list(MODULES) == sorted(set(MODULES))
    assert {name.split(".")[1] for name in MODULES} <= set(DEPENDENCIES)


def test_a_changed_source_is_noticed_and_a_touched_one_is_not(tmp_path: Path) -> None:
    package = tree(tmp_path)
    record = built(package)
    source = package / "node" / "part.py"
    assert record.changed() is None
    source.touch()
    assert record.changed() is None
    source.write_text("NAME = 'edon'\n")
    assert record.changed() == "node/part.py"
    source.unlink()
    assert record.changed() == "node/part.py"


def test_what_is_current_is_not_built_again(tmp_path: Path) -> None:
    record = built(tree(tmp_path))
    assert record.is_current("tools 1") and not record.is_current("tools 2")
    record.remove()
    assert not record.exists() and not record.is_current("tools 1")


def test_a_wheel_names_no_sources(tmp_path: Path) -> None:
    package = tree(tmp_path / "tree")
    record = built(package)
    wheel = tmp_path / "wheel"
    wheel.mkdir()
    record.write_for_wheel(wheel)
    assert BuildRecord(wheel).exists() and BuildRecord(wheel).changed() is None


@pytest.fixture
def choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """`choose` looks at this tree. The finders of imports are as before at the end."""
    monkeypatch.setattr(compilation, "_PACKAGE", tree(tmp_path))
    monkeypatch.setattr(compilation, "_is_compiled", False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    return tmp_path


def test_compiled_if_it_is_required(choice: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built(choice)
    monkeypatch.setenv(VARIABLE, "require")
    before = list(sys.meta_path)
    compilation.choose()
    assert compilation.is_compiled() and compilation.description() == "compiled" and sys.meta_path == before


@pytest.mark.parametrize("value", ["", "auto", "refuse"])
def test_plain_python_otherwise(choice: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    built(choice)
    monkeypatch.setenv(VARIABLE, value)
    compilation.choose()
    assert not compilation.is_compiled() and compilation.description() == "plain Python"
    spec = sys.meta_path[0].find_spec(MODULES[0], None)
    assert spec is not None and spec.origin == str(compilation.source_of(MODULES[0], choice))


def test_required_but_not_built(choice: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "require")
    with pytest.raises(ImportError, match=r"not built for this Python.*make compile"):
        compilation.choose()


def test_a_stale_library_is_not_loaded(choice: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built(choice)
    (choice / "formats" / "part.py").write_text("other")
    monkeypatch.setenv(VARIABLE, "require")
    with pytest.raises(ImportError, match=r"formats/part.py changed.*make compile"):
        compilation.choose()


def test_an_unknown_value(choice: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "yes")
    with pytest.raises(ImportError, match="'yes' is not known: set it to auto, require or refuse"):
        compilation.choose()


def test_this_process_has_what_was_chosen() -> None:
    """Not one module of the other form."""
    for name in MODULES:
        module = importlib.import_module(name)
        assert str(module.__file__).endswith(".py") is not compilation.is_compiled(), name
