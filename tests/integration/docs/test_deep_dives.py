"""The deep dives: their programs print what the page says, the functions they name exist, and each has a picture."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repository import REPOSITORY
from tests.waiting import TIMEOUT_SECONDS

FOLDER = REPOSITORY / "docs" / "deep-dives"
SOURCE = REPOSITORY / "src" / "millstream"
PAGES = re.findall(r"^\| \[.+?\]\((\S+\.md)\) \|", (FOLDER / "README.md").read_text(), re.M)
PROGRAM = re.compile(r"^```python\n(.*?)^```\n```text\n(.*?)^```\n", re.DOTALL | re.M)


def names_in(file: Path) -> set[str]:
    """The functions, classes and methods of a file, methods as `Class.method`."""
    found: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}" for each in node.body if hasattr(each, "name")}
    return found


def named_functions(page: str) -> list[tuple[list[str], list[str]]]:
    """The names and the files of each row of "Where it is", and of each "`name` in `file`"."""
    rows = [line.split("|")[2:4] for line in page.splitlines() if re.match(r"^\| .*`\S+\.py` \|$", line)]
    rows += re.findall(r"(`[\w.]+`) in\s+(`\S+\.py`)", page)
    return [(re.findall(r"`([\w.]+)`", names), re.findall(r"`(\S+?\.py)`", files)) for names, files in rows]


def test_there_are_ten() -> None:
    assert len(PAGES) == 10
    assert {*PAGES, "README.md", "performance.md"} == {page.name for page in FOLDER.glob("*.md")}


@pytest.mark.parametrize("name", [*PAGES, "performance.md"])
def test_what_a_page_names_exists(name: str) -> None:
    page = (FOLDER / name).read_text()
    rows = named_functions(page)
    assert len(rows) >= 3
    for names, files in rows:
        known = set[str]().union(*(names_in(SOURCE / file) for file in files))
        assert names and set(names) <= known, f"{name}: {files} have no {set(names) - known}"
    for file in re.findall(r"`([a-z_/]+/\w+\.py)`", page):
        assert (SOURCE / file).exists(), f"{name}: {file}"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_a_picture(name: str) -> None:
    page = (FOLDER / name).read_text()
    pictures = re.findall(r"!\[.+\]\((\S+\.svg)\)", page)
    assert pictures or "```mermaid\n" in page
    for picture in pictures:
        assert "<svg" in (FOLDER / picture).read_text()


@pytest.mark.parametrize("name", PAGES)
def test_the_program_prints_what_the_page_says(name: str, tmp_path: Path) -> None:
    ((program, printed),) = PROGRAM.findall((FOLDER / name).read_text())
    file = tmp_path / "program.py"
    file.write_text(program)
    commands = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, str(file)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == printed
