"""`tools/run_tests.py` on small suites, through real pytest: what fails is run again, and what fails twice is red."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repository import REPOSITORY

PROGRAM = REPOSITORY / "tools" / "run_tests.py"
BESIDE_OTHERS = ["-n", "2", "--dist", "loadfile"]
IN_A_WORKER = ["-n", "1", "--dist", "loadfile"]
GREEN = "def test_green():\n    pass\n"
ONCE = """
import pathlib
def once(name):
    mark = pathlib.Path(name)
    first = not mark.exists()
    mark.touch()
    return first
"""
FLAKY = ONCE + "def test_flaky():\n    assert not once('flaky-mark'), 'by chance'\n"


class Suite:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (directory / "pytest.ini").write_text("[pytest]\naddopts = -ra\nmarkers = slow: is left out\n")

    def write(self, **files: str) -> "Suite":
        for name, text in files.items():
            (self._directory / f"{name}.py").write_text(text)
        return self

    def run(self, *arguments: str) -> tuple[int, str]:
        # Nothing of the run that this test is a part of, and no plugins but one: importing them all takes seconds.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        command = [sys.executable, str(PROGRAM), "-p", "xdist", *arguments]
        done = subprocess.run(
            command, cwd=self._directory, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout

    def count(self, name: str) -> int:
        """How often a test has run that appends a line to a file of this name."""
        path = self._directory / name
        return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return Suite(tmp_path)


def test_a_green_run_is_one_run(suite: Suite) -> None:
    code, output = suite.write(test_one=GREEN).run(*IN_A_WORKER)
    assert code == 0
    assert "again" not in output
    assert "flaky:" not in output
    assert "1 passed" in output.splitlines()[-1]


def test_what_takes_longest_is_listed(suite: Suite) -> None:
    """With set-up; once, and not in the second run."""
    slow = "import pytest, time\n@pytest.fixture\ndef slow():\n    time.sleep(0.7)\n"
    slow += "def test_a(slow):\n    time.sleep(0.7)\ndef test_b():\n    time.sleep(0.1)\n"
    code, output = suite.write(test_one=slow, test_two=GREEN + FLAKY).run(*IN_A_WORKER)
    assert code == 0
    lines = output.splitlines()
    (files,) = (number for number, line in enumerate(lines) if line == "slowest files:")
    assert lines[files + 1].split()[1:] == ["s", "test_one.py"]
    assert lines[files + 2] == "slowest tests:"
    assert lines[files + 3].split()[1:] == ["s", "test_one.py::test_a"]
    assert "test_b" not in output


def test_cpu_time_is_listed_with_that_of_processes_that_ended(suite: Suite) -> None:
    busy = "import subprocess, sys\ndef test_busy():\n    subprocess.run([sys.executable, '-c', 'import time\\n"
    busy += "while time.process_time() < 1.2: pass'])\n"
    measuring = (REPOSITORY / "tests" / "conftest.py").read_text()
    code, output = suite.write(conftest=measuring, test_one=busy, test_two=GREEN).run(*IN_A_WORKER)
    assert code == 0
    lines = output.splitlines()
    (title,) = (number for number, line in enumerate(lines) if line.startswith("most CPU time, of "))
    assert lines[title + 1].split()[1:] == ["s", "test_one.py"]


@pytest.mark.parametrize("arguments", [[], BESIDE_OTHERS], ids=["in one process", "in workers"])
def test_what_passes_the_second_time_is_green_and_named(suite: Suite, arguments: list[str]) -> None:
    code, output = suite.write(test_one=FLAKY, test_two=GREEN).run(*arguments)
    assert code == 0
    assert "E       AssertionError: by chance" in output
    assert "1 failed, 1 passed" in output
    assert "flaky: test_one.py::test_flaky" in output.splitlines()
    assert "1 passed" in output.splitlines()[-1]


def test_only_what_failed_runs_again(suite: Suite) -> None:
    beside = "def test_beside():\n    open('beside', 'a').write('ran\\n')\n"
    code, _ = suite.write(test_one=FLAKY + beside, test_two=beside).run(*IN_A_WORKER, "test_one.py")
    assert code == 0
    assert suite.count("beside") == 1


def test_what_fails_twice_is_red_and_what_passed_is_still_named(suite: Suite) -> None:
    code, output = suite.write(test_one=FLAKY, test_two="def test_red():\n    assert 0\n").run(*IN_A_WORKER)
    assert code == 1
    assert output.count("FAILED test_two.py::test_red") == 2
    assert "flaky: test_one.py::test_flaky" in output.splitlines()
    assert "1 failed, 1 passed" in output.splitlines()[-1]


def test_the_second_run_does_not_depend_on_a_cache_of_pytest(suite: Suite) -> None:
    code, output = suite.write(test_one=FLAKY, test_two=GREEN).run("-p", "no:cacheprovider")
    assert code == 0
    assert "flaky: test_one.py::test_flaky" in output.splitlines()


def test_failures_of_earlier_runs_are_not_counted(suite: Suite) -> None:
    suite.write(test_one="def test_red():\n    assert 0\n", test_two=GREEN)
    assert suite.run()[0] == 1
    code, output = suite.run("test_two.py")
    assert code == 0
    assert "again" not in output


def test_a_test_whose_name_is_strange_is_found_again(suite: Suite) -> None:
    text = (
        ONCE + "import pytest\n@pytest.mark.parametrize('what', ['a b', 'c::d', '[e]', 'f, g', '-n 3', 'ü'])\n"
        "def test_strange(what):\n    assert not once('mark' + what.encode().hex())\n"
    )
    code, output = suite.write(test_one=text).run(*IN_A_WORKER)
    assert code == 0
    assert "6 passed" in output.splitlines()[-1]


def test_marks_hold_in_the_second_run_too(suite: Suite) -> None:
    slow = "import pytest\n@pytest.mark.slow\ndef test_slow():\n    assert 0\n"
    code, output = suite.write(test_one=FLAKY + slow).run(*IN_A_WORKER, "-m", "not slow")
    assert code == 0
    assert "test_slow" not in output


@pytest.mark.parametrize("scope", ["module", "session"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_fixture_that_fails_by_chance(suite: Suite, scope: str, when: str) -> None:
    fails = "    assert not once('fixture-mark')\n"
    before, after = (fails, "") if when == "before" else ("", fails)
    text = ONCE + f"import pytest\n@pytest.fixture(scope='{scope}')\ndef thing():\n{before}    yield\n{after}"
    text += "def test_a(thing):\n    pass\ndef test_b(thing):\n    pass\n"
    code, output = suite.write(test_one=text).run(*IN_A_WORKER)
    assert code == 0
    (line,) = (line for line in output.splitlines() if line.startswith("flaky: "))
    assert "test_one.py::test_b" in line


def test_a_fixture_that_fails_twice_at_its_end_is_red(suite: Suite) -> None:
    text = "import pytest\n@pytest.fixture(scope='module')\ndef thing():\n    yield\n    assert 0\n"
    code, output = suite.write(test_one=text + "def test_a(thing):\n    pass\n").run(*IN_A_WORKER)
    assert code == 1
    assert "flaky:" not in output


def test_a_worker_that_dies(suite: Suite) -> None:
    text = ONCE + "import os\ndef test_dies():\n    once('mark') and os._exit(9)\n"
    beside = "def test_beside():\n    open('beside', 'a').write('ran\\n')\n"
    code, output = suite.write(test_one=text + beside, test_two=GREEN).run(*BESIDE_OTHERS)
    assert code == 0
    assert "crashed while running 'test_one.py::test_dies'" in output
    assert "flaky: test_one.py::test_dies" in output.splitlines()
    assert suite.count("beside") == 1


def test_a_process_that_dies_without_a_worker_is_red(suite: Suite) -> None:
    code, output = suite.write(test_one="import os\ndef test_dies():\n    os._exit(0)\n", test_two=GREEN).run()
    assert code != 0
    assert "not run again" in output


@pytest.mark.parametrize("arguments", [[], BESIDE_OTHERS], ids=["in one process", "in workers"])
def test_what_cannot_be_collected_is_red(suite: Suite, arguments: list[str]) -> None:
    text = ONCE + "assert not once('import-mark')\n" + GREEN
    code, output = suite.write(test_one=text, test_two=GREEN).run(*arguments)
    assert code != 0
    assert "not run again" in output


def test_no_tests_at_all_is_red(suite: Suite) -> None:
    assert suite.run()[0] == pytest.ExitCode.NO_TESTS_COLLECTED


def test_an_interrupted_run_is_red(suite: Suite) -> None:
    text = FLAKY + "def test_interrupted():\n    raise KeyboardInterrupt\n"
    code, output = suite.write(test_one=text).run()
    assert code == pytest.ExitCode.INTERRUPTED
    assert "not run again" in output


@pytest.mark.parametrize("arguments", [["-x"], ["-x", *BESIDE_OTHERS], ["--maxfail", "1"]])
def test_no_failure_keeps_the_other_tests_from_running(suite: Suite, arguments: list[str]) -> None:
    code, output = suite.write(test_one=FLAKY + "def test_red():\n    assert 0\n").run(*arguments)
    assert code == 1
    assert "2 failed" in output


def test_what_is_skipped_the_second_time_has_not_passed(suite: Suite) -> None:
    text = ONCE + "import pytest\ndef test_one():\n    assert not once('mark')\n    pytest.skip('no')\n"
    code, output = suite.write(test_one=text).run()
    assert code == 1
    assert "flaky:" not in output
    assert "not passed when run again: test_one.py::test_one" in output


def test_what_is_gone_the_second_time_has_not_passed(suite: Suite) -> None:
    text = ONCE + "if once('mark'):\n    def test_one():\n        assert 0\ndef test_two():\n    assert 0\n"
    code, output = suite.write(test_one=text).run()
    assert code != 0
    assert "flaky:" not in output


def test_an_expected_failure_is_none(suite: Suite) -> None:
    text = "import pytest\n@pytest.mark.xfail\ndef test_one():\n    assert 0\n"
    code, output = suite.write(test_one=text).run(*IN_A_WORKER)
    assert code == 0
    assert "again" not in output


def test_many_failures_are_not_chance(suite: Suite) -> None:
    text = "import pytest\n@pytest.mark.parametrize('n', range(51))\ndef test_red(n):\n    assert 0\n"
    code, output = suite.write(test_one=text).run(*IN_A_WORKER)
    assert code == 1
    assert "not run again: 51 tests failed, more than 50: that is not chance" in output
