"""For all tests: what takes long begins first, what is dear to start is started once, and hypothesis has no deadlines
and always the same examples.

Several files of tests run at once (`make test`): a long one that began last would keep everybody waiting at the end. A
timing is never an assertion, so hypothesis has no deadline.
"""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("millstream", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.load_profile("millstream")

_TESTS = Path(__file__).parent
_LONG_ROOMS = [
    "chaos",
    "pipeline",
    "console",
    "spark_exactly_once",
    "simulation",
    "spark",
    "examples",
    "lake",
    "exactly_once",
    "spark_cluster",
    "clients",
    "cluster",
    "faults",
    "benchmarks",
    "fuzz",
    "cli",
    "gateway",
    "wire",
    "registry",
    "raft",
]

_SHARED = {
    "console": ("tests/console/",),
    "spark session": (
        "tests/pipeline/test_engine.py",
        "tests/pipeline/test_typed_sinks_and_stores.py",
        "tests/spark/test_protobuf.py",
        "tests/spark/test_sink.py",
        "tests/spark/test_source.py",
        "tests/examples/",
        "tests/lake/test_spark.py",
    ),
}
"""Files that use one thing that is dear to start: three nodes with a gateway and a browser, or a JVM with Spark. They
run one after another in one process. Spread over all processes, each would start its own."""


def _rank(item: pytest.Item) -> int:
    room = item.path.relative_to(_TESTS).parts[0] if item.path.is_relative_to(_TESTS) else ""
    return _LONG_ROOMS.index(room) if room in _LONG_ROOMS else len(_LONG_ROOMS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_rank)


def _unit(file: str) -> str:
    """What is run by one process: a file, or all files that share something."""
    return next((name for name, paths in _SHARED.items() if file.startswith(paths)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return _unit(super()._split_scope(nodeid))

    return Scheduling(config, log)
