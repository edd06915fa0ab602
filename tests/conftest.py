"""For all tests: what takes long begins first, what is dear to start is started once, and hypothesis has no deadlines
and always the same examples. `MILLSTREAM_EXAMPLES=quick` (`make test`, `make unit`) tries fewer of them.

Several files of tests run at once (`make test`): a long one that began last would keep everyone waiting at the end. A
timing is never an assertion, so hypothesis has no deadline.
"""

import gc
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from millstream import compilation

settings.register_profile("millstream", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.register_profile("quick", settings.get_profile("millstream"), max_examples=20)
settings.load_profile(os.environ.get("MILLSTREAM_EXAMPLES", "millstream"))

_TESTS = Path(__file__).parent
_LONGEST_FIRST = [
    "integration/simulator/test_seeds.py",
    "system/chaos",
    "system/pipeline",
    "system/console",
    "system/spark_exactly_once",
    "integration/simulator",
    "system/spark",
    "system/examples",
    "system/lake",
    "system/exactly_once",
    "system/spark_cluster",
    "system/clients",
    "system/cluster",
    "system/packages",
    "system/faults",
    "system/benchmarks",
    "system/fuzz",
    "integration/cli",
    "integration/gateway",
    "integration/raw_client",
    "integration/registry",
    "integration",
]

_SHARED = {
    "console": ("tests/system/console/",),
    "spark session": (
        "tests/system/pipeline/test_engine.py",
        "tests/system/pipeline/test_run_lineage.py",
        "tests/system/pipeline/test_sharing.py",
        "tests/system/pipeline/test_trial.py",
        "tests/system/pipeline/test_trial_command.py",
        "tests/system/pipeline/test_typed_sinks_and_stores.py",
        "tests/system/spark/test_protobuf.py",
        "tests/system/spark/test_sink.py",
        "tests/system/spark/test_source.py",
        "tests/system/examples/",
        "tests/system/lake/test_spark.py",
        "tests/system/tables/test_serve.py",
    ),
}
"""Files that use one thing that is dear to start: three nodes with a gateway and a browser, or a JVM with Spark. They
run one after another in one process. Spread over all processes, each would start its own."""


def _rank(item: pytest.Item) -> int:
    path = item.path.relative_to(_TESTS).as_posix() if item.path.is_relative_to(_TESTS) else ""
    ranks = (rank for rank, folder in enumerate(_LONGEST_FIRST) if f"{path}/".startswith(f"{folder}/"))
    return next(ranks, len(_LONGEST_FIRST))


def _in_both_forms() -> tuple[str, ...]:
    """The folders of unit tests of packages that have compiled modules: `unit/node/storage`, `unit/formats/records`."""
    packages = (module.split(".")[1:-1][:2] for module in compilation.MODULES)
    return tuple(sorted({"/".join(("unit", *package)) + "/" for package in packages}))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_rank)
    compiled_packages = _in_both_forms()
    for item in items:
        if item.path.is_relative_to(_TESTS) and item.path.relative_to(_TESTS).as_posix().startswith(compiled_packages):
            item.add_marker("both_forms")
    if compilation.is_compiled():
        why = pytest.mark.skip(
            reason=f"replaces parts of compiled modules; runs with {compilation.VARIABLE}={compilation.REFUSE}"
        )
        for item in items:
            if item.get_closest_marker("plain") is not None:
                item.add_marker(why)


_IS_LAST_OF_FILE = pytest.StashKey[bool]()


class _Cpu:
    """CPU time of this process, of those that it started, and of theirs, since the last reading. Processes that still
    run count, so a node that several files share counts for the files that use it."""

    def __init__(self) -> None:
        self._before = 0.0

    def since_last(self) -> float:
        now = self._now()
        spent, self._before = now - self._before, now
        return max(spent, 0.0)  # the time of a process that no one waited for is gone with it

    @staticmethod
    def _now() -> float:
        times = os.times()
        own = times.user + times.system + times.children_user + times.children_system
        children: dict[int, list[tuple[int, float]]] = {}
        for directory in Path("/proc").glob("[0-9]*"):
            try:
                # The name, in brackets, may contain anything.
                fields = (directory / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            seconds = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
            children.setdefault(int(fields[1]), []).append((int(directory.name), seconds))
        waiting = [os.getpid()]
        while waiting:
            for pid, seconds in children.get(waiting.pop(), ()):
                own += seconds
                waiting.append(pid)
        return own


_cpu = _Cpu()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Garbage collection is off while tests are collected. What is there afterwards stays, and is never searched."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        _cpu.since_last()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    item.stash[_IS_LAST_OF_FILE] = nextitem is None or nextitem.path != item.path
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """The CPU time of each file, with its last test, for `tools/run_tests.py`: on a busy machine it says more than the
    time that passed."""
    report = yield
    if call.when == "teardown" and item.stash[_IS_LAST_OF_FILE]:
        report.user_properties.append(("cpu_s", _cpu.since_last()))
    return report


def pytest_report_header() -> str:
    return f"millstream: {compilation.description()}"


def _scope(file: str) -> str:
    """What is run by one process: a file, or all files that share something."""
    return next((name for name, paths in _SHARED.items() if file.startswith(paths)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return _scope(super()._split_scope(nodeid))

    return Scheduling(config, log)
