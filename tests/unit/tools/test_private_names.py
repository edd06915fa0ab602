"""Private names of libraries: those that are used are listed here, and their libraries have an upper bound.

A private attribute (`x._name`) belongs to a library if no file of ours defines that name. A private name of a library
that we define as well is not found; review finds it.
"""

import re
import tomllib
from collections.abc import Iterator

from packaging.requirements import Requirement

from tests.repository import REPOSITORY

USED = {
    "nicegui": {"nicegui.nicegui._shutdown", "nicegui.nicegui._startup"},
    "pyspark": {
        "pyspark.find_spark_home._find_spark_home",
        "_ensure_initialized",
        "_gateway",
        "_get_j_spark_session_class",
        "_jdf",
        "_jo",
        "_jsc",
        "_jsparkSession",
        "_jvm",
    },
}
"""By library: what is used. Each has an upper bound, because it may change with the next version."""
ALSO_BOUNDED = {"uvicorn", "mkdocs"}
"""uvicorn: a subclass of its HTTP protocol. mkdocs: version 2 has no hooks."""
DOCUMENTED = {"_asdict", "_exit", "_value_", "_value2member_map_"} | {
    # Errors of librdkafka itself have names with an underscore.
    *("_AUTHENTICATION", "_MSG_TIMED_OUT", "_PARTITION_EOF", "_PURGE_INFLIGHT", "_PURGE_QUEUE", "_QUEUE_FULL"),
    *("_TIMED_OUT", "_TIMED_OUT_QUEUE", "_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC"),
}
"""Names with an underscore that are public, or are of Python and documented."""
OF_ASYNCIO = {"_get_running_loop", "_set_running_loop", "_log_destroy_pending"}
"""The simulator is an event loop; asyncio offers these to event loops."""

ONLY_TYPES = {"_Regexp"}
"""In annotations that are never evaluated: re2 has no other name for a compiled pattern."""

_OWN = re.compile(r"(?<![\w.])_[a-zA-Z]\w*|(?<=self\.)_\w+(?=\s*[:=,)])")
"""A name that is no attribute: it is defined, or is a string such as in `__slots__`; or it is an attribute of self."""
_ATTRIBUTE = re.compile(r"\._([a-zA-Z]\w*)")
_IMPORT = re.compile(r"^\s*from (?!millstream)(\S+) import (?:\(\n)?(.+)", re.M)


def _imported(source: str) -> Iterator[str]:
    """Private names that are imported from libraries, or from private modules of them."""
    for module, names in _IMPORT.findall(source):
        for name in re.split(r",\s*", names.strip(" ()")):
            if re.search(r"(^|\.)_[a-zA-Z]", f"{module}.{name}") and not module.startswith("."):
                yield f"{module}.{name.split(' ')[0]}"


def test_private_names_of_libraries_are_listed() -> None:
    sources = [path.read_text() for path in (REPOSITORY / "src").rglob("*.py")]
    compiled = {path.stem for path in (REPOSITORY / "src").rglob("*.pyx")}
    own = {name for source in sources for name in _OWN.findall(_IMPORT.sub("", source))}
    imported = {name for source in sources for name in _imported(source)}
    attributes = {f"_{name}" for source in sources for name in _ATTRIBUTE.findall(source)}
    own |= compiled | {name.rpartition(".")[2] for name in imported}
    found = (attributes - own | imported) - DOCUMENTED - OF_ASYNCIO - ONLY_TYPES
    assert found == set[str]().union(*USED.values()), "avoid the private name, or list it and bound its library"


def test_their_libraries_have_an_upper_bound() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    groups = [*project["project"]["optional-dependencies"].values(), *project["dependency-groups"].values()]
    lines = [
        *project["project"]["dependencies"],
        *(each for group in groups for each in group if isinstance(each, str)),
    ]
    bounded = USED.keys() | ALSO_BOUNDED
    requirements = [each for each in map(Requirement, lines) if each.name in bounded]
    assert {each.name for each in requirements} == bounded
    assert all(any(part.operator == "<" for part in each.specifier) for each in requirements)
