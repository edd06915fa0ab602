"""The choice between compiled modules and plain Python, and the record of what a library was built from."""

import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest

from millstream import compilation
from millstream.compilation import DEPENDENCIES, MODULES, VARIABLE, BuildRecord
from tests.repository import REPOSITORY


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
    assert record.is_current()


def test_after_a_build_that_failed_nothing_is_loaded_and_the_record_says_why(tmp_path: Path) -> None:
    record = built(tree(tmp_path))
    record.note_failure("there is no\nC compiler")
    record.write()
    assert not record.is_built() and not record.is_current("tools 1")
    assert record.why_not_built() == "there is no C compiler"


def test_a_wheel_names_no_sources(tmp_path: Path) -> None:
    package = tree(tmp_path / "tree")
    record = built(package)
    wheel = tmp_path / "wheel"
    wheel.mkdir()
    record.write_for_wheel(wheel)
    assert BuildRecord(wheel).is_built() and BuildRecord(wheel).changed() is None
    record.note_failure("no compiler")
    record.write_for_wheel(wheel)
    assert not BuildRecord(wheel).is_built() and BuildRecord(wheel).why_not_built() == "no compiler"


@pytest.fixture
def choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """`choose` looks at this tree. The finders of imports are as before at the end."""
    monkeypatch.setattr(compilation, "_PACKAGE", tree(tmp_path))
    monkeypatch.setattr(compilation, "_why_plain", "not chosen yet")
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    return tmp_path


@pytest.mark.parametrize("value", ["", "auto", "require"])
def test_compiled_if_it_was_built(choice: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    built(choice)
    monkeypatch.setenv(VARIABLE, value)
    before = list(sys.meta_path)
    compilation.choose()
    assert compilation.is_compiled() and compilation.why_plain() is None and sys.meta_path == before
    assert compilation.description() == "compiled"


def runs_plain(package: Path) -> bool:
    spec = sys.meta_path[0].find_spec(MODULES[0], None)
    assert spec is not None and spec.origin == str(compilation.source_of(MODULES[0], package))
    return not compilation.is_compiled() and compilation.description() == "plain Python"


def test_plain_python_if_it_is_wanted(choice: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built(choice)
    monkeypatch.setenv(VARIABLE, "refuse")
    compilation.choose()
    assert runs_plain(choice) and compilation.why_plain() == "MILLSTREAM_COMPILED=refuse"


def test_plain_python_if_there_is_no_build(choice: Path) -> None:
    compilation.choose()
    assert runs_plain(choice)
    assert str(compilation.why_plain()).startswith("the compiled modules were not built for this Python: install")


def test_plain_python_if_the_build_failed(choice: Path) -> None:
    record = built(choice)
    record.note_failure("there is no C compiler")
    record.write()
    compilation.choose()
    assert runs_plain(choice) and "(there is no C compiler): install" in str(compilation.why_plain())


def test_plain_python_if_a_source_changed_after_the_build(choice: Path) -> None:
    built(choice)
    (choice / "formats" / "part.py").write_text("other")
    compilation.choose()
    changed = "formats/part.py changed after the modules were compiled: run `make compile`"
    assert runs_plain(choice) and compilation.why_plain() == changed


def test_required_but_not_built(choice: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "require")
    with pytest.raises(ImportError, match=r"not built for this Python.*make compile"):
        compilation.choose()


def test_stale_modules_are_an_error_where_they_are_required(choice: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built(choice)
    (choice / "formats" / "part.py").write_text("other")
    monkeypatch.setenv(VARIABLE, "require")
    with pytest.raises(ImportError, match=r"formats/part.py changed.*make compile"):
        compilation.choose()


def test_an_unknown_value_of_the_variable_is_an_error(choice: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "yes")
    with pytest.raises(ImportError, match="'yes' is not known: set it to auto, require or refuse"):
        compilation.choose()


def test_this_process_has_what_was_chosen() -> None:
    """Not one module of the other form."""
    for name in MODULES:
        module = importlib.import_module(name)
        assert str(module.__file__).endswith(".py") is not compilation.is_compiled(), name


def test_a_build_by_pip_has_the_compiler_that_the_tests_ran_over() -> None:
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    (pinned,) = re.findall(r"^mypy==.*", (REPOSITORY / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned in settings["build-system"]["requires"]
    assert pinned in settings["project"]["optional-dependencies"]["compile"]
