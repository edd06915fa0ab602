"""For all tests: what takes long begins first, and hypothesis has no deadlines and always the same examples.

Several files of tests run at once (`make test`): a long one that began last would keep everybody waiting at the end. A
timing is never an assertion, so hypothesis has no deadline.
"""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("millstream", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.load_profile("millstream")

_TESTS = Path(__file__).parent
_LONG_ROOMS = [
    "chaos",
    "simulation",
    "spark_exactly_once",
    "pipeline",
    "spark",
    "examples",
    "lake",
    "exactly_once",
    "spark_cluster",
    "console",
    "gateway",
    "registry",
    "fuzz",
    "benchmarks",
    "clients",
]


def _rank(item: pytest.Item) -> int:
    room = item.path.relative_to(_TESTS).parts[0] if item.path.is_relative_to(_TESTS) else ""
    return _LONG_ROOMS.index(room) if room in _LONG_ROOMS else len(_LONG_ROOMS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_rank)
