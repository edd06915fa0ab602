"""Files of this room share a cluster if they run in the same process, and which ones do is decided by chance. So no two
of them may make a topic of the same name."""

import ast
from pathlib import Path

_TYPED = "new-name"
"""The field in which the name of a new topic is typed."""


def _made_topics(file: Path) -> set[str]:
    """Names that a file gives to `make_topic`, or types as the name of a new topic."""
    calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call) and node.args]
    names = {ast.unparse(call.args[0]) for call in calls if ast.unparse(call.func) == "make_topic"}
    names |= {ast.unparse(call.args[0]) for call in calls if ast.unparse(call.func).endswith(f"'{_TYPED}').fill")}
    return {ast.literal_eval(name) for name in names if name.startswith("'")}


def test_no_two_files_make_the_same_topic() -> None:
    made: dict[str, set[str]] = {}
    for file in Path(__file__).parent.glob("*.py"):
        for name in _made_topics(file):
            made.setdefault(name, set()).add(file.name)
    assert {"orders", "audited", "invoices", "as-shown"} <= made.keys(), "names are not found any more"
    wrong = {"a b"}  # no topic can have this name
    assert {name: files for name, files in made.items() if len(files) > 1 and name not in wrong} == {}
