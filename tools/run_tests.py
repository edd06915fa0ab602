"""Runs pytest, and runs what failed once more, alone: `python tools/run_tests.py [arguments of pytest]`.

Tests share the machine with other tests, and one may fail by chance. What failed in the first run is run again at the
end, in one process, with nothing beside it. If all of it passes then, the run is green, and a line `flaky: <tests>`
names those tests. Both reports stay in the output. The exit code is that of pytest. The end of the first run lists the
files and the tests that took longest, with their set-up and teardown, and the files that took most CPU time (measured
by `tests/conftest.py`). The times of all files are in `.cache/test-times.txt`.

There is no second run where a second run could hide something: if tests were not collected or not run, if pytest was
interrupted or ended in an unusual way, or if so many tests failed that it cannot be chance.
"""

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MOST_FLAKY = 50
"""If more tests fail than these, they are not run again."""
SLOWEST = 20
"""So many files and tests are listed with their time, if they took a second or more."""
TIMES = Path(".cache") / "test-times.txt"
_INNER = "--one-run"


class Outcomes:
    """A plugin of pytest: the worst outcome of each test (its set-up and teardown count), as a JSON file at the end."""

    _RANK = ("passed", "skipped", "failed")

    def __init__(self, target: Path, only: list[str]) -> None:
        self._target = target
        self._only = only
        self._tests: dict[str, str] = {}
        self._seconds: dict[str, float] = {}
        self._cpu: dict[str, float] = {}
        self._not_collected: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration
        for name, value in report.user_properties:
            if name == "cpu_s":
                self._cpu[report.nodeid] = float(str(value))
        before = self._tests.get(report.nodeid, "passed")
        # A test that is expected to fail, and does, is reported as skipped. Here it did what it should.
        outcome = "passed" if report.skipped and hasattr(report, "wasxfail") else report.outcome
        self._tests[report.nodeid] = max(before, outcome, key=self._RANK.index)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._not_collected.append(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """In a second run, only what failed in the first: `--last-failed` runs everything if its cache is lost."""
        if self._only:
            others = [item for item in items if item.nodeid not in self._only]
            items[:] = [item for item in items if item.nodeid in self._only]
            config.hook.pytest_deselected(items=others)

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        # Here, and not at the very end, since CI reads pytest's last line.
        if not self._only:
            for line in _slowest(self._seconds, self._cpu):
                terminalreporter.write_line(line)
            TIMES.parent.mkdir(exist_ok=True)
            TIMES.write_text("".join(_all_files(self._seconds, self._cpu)))
        flaky = [test for test in self._only if self._tests.get(test) == "passed"]
        if flaky:
            terminalreporter.write_line(f"flaky: {', '.join(flaky)}", yellow=True)

    def pytest_sessionfinish(self) -> None:
        # Written to the end or not at all: without the file, the run counts as one that broke.
        found = {"tests": self._tests, "not_collected": self._not_collected}
        self._target.write_text(json.dumps(found))


def _by_file(seconds: dict[str, float]) -> dict[str, float]:
    files: dict[str, float] = {}
    for test, taken in seconds.items():
        file = test.partition("::")[0]
        files[file] = files.get(file, 0.0) + taken
    return files


def _slowest(seconds: dict[str, float], cpu: dict[str, float]) -> list[str]:
    """Lines with the files and the tests that took longest, and the files that took most CPU time."""
    lines = []
    by_cpu = f"most CPU time, of {sum(cpu.values()) / 60:.1f} minutes:"
    for title, times in (
        ("slowest files:", _by_file(seconds)),
        ("slowest tests:", seconds),
        (by_cpu, _by_file(cpu)),
    ):
        longest = sorted(times.items(), key=lambda each: -each[1])[:SLOWEST]
        shown = [f"{taken:7.1f} s  {name}" for name, taken in longest if taken >= 1]
        lines += [title, *shown] if shown else []
    return lines


def _all_files(seconds: dict[str, float], cpu: dict[str, float]) -> Iterator[str]:
    """Lines with CPU time, time and number of tests of each file, those with most CPU time first."""
    by_cpu = _by_file(cpu)
    tests = Counter(test.partition("::")[0] for test in seconds)
    yield f"{'CPU s':>8} {'s':>8} {'tests':>6}\n"
    for file, taken in sorted(_by_file(seconds).items(), key=lambda each: -by_cpu.get(each[0], 0.0)):
        yield f"{by_cpu.get(file, 0.0):8.1f} {taken:8.1f} {tests[file]:6}  {file}\n"


def run(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="millstream-tests-") as scratch:
        first = Path(scratch) / "first.json"
        # Behind -x or --maxfail some tests would not be run, and nothing would show it.
        code = _pytest(first, [], [*arguments, "--maxfail=0"])
        if code == pytest.ExitCode.OK and first.exists():
            return 0
        failed = _failed(first)
        reason = _no_second_run(code, first, failed)
        if reason:
            print(f"not run again: {reason}", flush=True)
            return code or int(pytest.ExitCode.INTERNAL_ERROR)
        print(f"\nrun again, alone: {', '.join(failed)}", flush=True)
        second = Path(scratch) / "second.json"
        code = _pytest(second, failed, [*arguments, "-n0", "--maxfail=0", *failed])
        return code or _second_verdict(second, failed)


def _no_second_run(code: int, report: Path, failed: list[str]) -> str:
    """Why what failed is not run again; empty if it is."""
    if code != pytest.ExitCode.TESTS_FAILED or not report.exists():
        return f"pytest ended with {code}, so tests may not have run"
    if json.loads(report.read_text())["not_collected"]:
        return "not all tests could be collected"
    if not failed:
        return "pytest reports a failure, but no test that failed"
    if len(failed) > MOST_FLAKY:
        return f"{len(failed)} tests failed, more than {MOST_FLAKY}: that is not chance"
    return ""


def _second_verdict(report: Path, failed: list[str]) -> int:
    """pytest is content with a test that is skipped, or gone. That is not a test that passes."""
    outcomes = json.loads(report.read_text())["tests"] if report.exists() else {}
    without = [test for test in failed if outcomes.get(test) != "passed"]
    if not without:
        return 0
    print(f"failed, and not passed when run again: {', '.join(without)}", flush=True)
    return int(pytest.ExitCode.TESTS_FAILED)


def _failed(report: Path) -> list[str]:
    outcomes = json.loads(report.read_text())["tests"] if report.exists() else {}
    return [test for test, outcome in outcomes.items() if outcome == "failed"]


def _pytest(report: Path, only: list[str], arguments: list[str]) -> int:
    command = [sys.executable, __file__, _INNER, str(report), json.dumps(only), *arguments]
    with subprocess.Popen(command) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue  # pytest was interrupted too, and ends by itself


def _one_run(report: str, only: str, *arguments: str) -> int:
    # What `python -m pytest` puts first: tests are not to find the tools of this directory by accident.
    sys.path[0] = str(Path.cwd())
    return int(pytest.main([*arguments], plugins=[Outcomes(Path(report), json.loads(only))]))


if __name__ == "__main__":
    if sys.argv[1:2] == [_INNER]:
        sys.exit(_one_run(*sys.argv[2:]))
    sys.exit(run(sys.argv[1:]))
