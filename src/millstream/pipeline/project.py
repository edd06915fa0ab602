"""Small projects that work, written to a directory of yours: the worked examples, which come with the package."""

import shutil
from dataclasses import dataclass
from pathlib import Path

_EXAMPLES = Path(__file__).parent / "examples"
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")
DEFAULT_EXAMPLE = "orders-revenue"


class ProjectExistsError(Exception):
    """There are files where the project is to go."""


@dataclass(frozen=True, slots=True)
class Example:
    name: str
    summary: str
    """The first line of its README."""


def examples() -> list[Example]:
    """Those that come with the package."""
    found = []
    for directory in sorted(_EXAMPLES.glob("*/")):
        readme = directory / "README.md"
        if readme.is_file():
            found.append(Example(directory.name, readme.read_text(encoding="utf-8").split("\n", 1)[0].lstrip("# ")))
    return found


def write_project(directory: Path, example: str) -> list[Path]:
    """Copy an example into a directory that is new or has none of its files. Returns what was written."""
    source = _EXAMPLES / example
    names = [path.name for path in sorted(source.iterdir()) if path.is_file() and not path.name.startswith(".")]
    there = [name for name in names if (directory / name).exists()]
    if there:
        raise ProjectExistsError(f"{directory} has {', '.join(there)} already; give another directory")
    shutil.copytree(source, directory, ignore=_LEFT_OUT, dirs_exist_ok=True)
    return [directory / name for name in names]
