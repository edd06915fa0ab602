"""Worked examples that come with the package, copied to a directory as a new project."""

import shutil
from dataclasses import dataclass
from pathlib import Path

_EXAMPLES = Path(__file__).parent / "examples"
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")
DEFAULT_EXAMPLE = "orders-revenue"


class ProjectExistsError(Exception):
    """The directory already has files of the project."""


@dataclass(frozen=True, slots=True)
class Example:
    name: str
    summary: str
    """The first line of its README."""


def examples() -> list[Example]:
    """The examples of the package."""
    found = []
    for directory in sorted(_EXAMPLES.glob("*/")):
        readme = directory / "README.md"
        if readme.is_file():
            found.append(Example(directory.name, readme.read_text(encoding="utf-8").split("\n", 1)[0].lstrip("# ")))
    return found


def write_project(directory: Path, example: str) -> list[Path]:
    """Copies an example to a directory that has none of its files. Returns the written files."""
    source = _EXAMPLES / example
    names = [path.name for path in sorted(source.iterdir()) if path.is_file() and not path.name.startswith(".")]
    there = [name for name in names if (directory / name).exists()]
    if there:
        raise ProjectExistsError(f"{directory} already has {', '.join(there)}; choose another directory")
    shutil.copytree(source, directory, ignore=_LEFT_OUT, dirs_exist_ok=True)
    return [directory / name for name in names]
