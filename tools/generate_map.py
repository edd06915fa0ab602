"""Writes `docs/map.md`, the map of the files, from what each module says of itself: `python tools/generate_map.py`."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "millstream"
TARGET = ROOT / "docs" / "map.md"


@cache
def first_sentence(path: Path) -> str:
    text = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")[0].split())
    # Not up to a colon: the part behind it says what is in the file.
    sentence = re.match(r"(.+?\.)(?=\s[A-Z`]|$)", text)
    return (sentence[1] if sentence else text).replace("|", "\\|")


def render() -> str:
    lines = ["# The map of the files", "", "Made by `python tools/generate_map.py` from the first line of each module."]
    for room in sorted(path for path in SOURCE.iterdir() if (path / "__init__.py").exists()):
        lines += [
            "",
            f"## `{room.name}/`",
            "",
            first_sentence(room / "__init__.py"),
            "",
            "| file | what it is for |",
            "|---|---|",
        ]
        for path in sorted(room.rglob("*.py")):
            if path.name == "__init__.py" and path.parent == room:
                continue
            lines.append(f"| `{path.relative_to(room)}` | {first_sentence(path)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    TARGET.write_text(render())
