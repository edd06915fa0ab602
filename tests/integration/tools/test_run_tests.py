"""`tools/run_tests.py` on small suites, through real pytest: what fails is run again, and what fails twice is red."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repository import REPOSITORY

PROGRAM = REPOSITORY / "tools" / "run_tests.py"
BESIDE_OTHERS = ["-n", "2", "--dist", "loadfile"]
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

    def text(self, name: str) -> str:
        return (self._directory / name).read_text()

    def count(self, name: str) -> int:
        """How often a test has run that appends a line to a file of this name."""
        path = self._directory / name
        return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return Suite(tmp_path)


def test_a_green_run_is_one_run(suite: Suite) -> None:
    """A test that is expected to fail, and does, is green."""
    expected = "import pytest\n@pytest.mark.xfail\ndef test_one():\n    assert 0\n"
    code, output = suite.write(test_one=GREEN, test_two=expected).run(*BESIDE_OTHERS)
    assert code == 0
    assert "again" not in output
    assert "flaky:" not in output
    assert "1 passed, 1 xfailed" in output.splitlines()[-1]


def test_cpu_time_is_listed_with_that_of_other_processes(suite: Suite) -> None:
    """Of those that ended, and of those that run: the file that uses them counts, not the one that ends them."""
    burn = "import time\\nwhile time.process_time() < 1.2: pass\\nprint(flush=True)\\ntime.sleep(60)"
    busy = "import subprocess, sys\n"
    ended = busy + f"def test_busy():\n    subprocess.run([sys.executable, '-c', '{burn}'.replace('60', '0')])\n"
    runs = busy + f"def start():\n    made = subprocess.Popen([sys.executable, '-c', '{burn}'], stdout=-1)\n"
    runs += "    made.stdout.readline()\n    return made\n"
    runs += "def test_start():\n    global made\n    made = start()\n"
    ends = "import test_runs\ndef test_end():\n    with test_runs.made:\n        test_runs.made.kill()\n"
    measuring = (REPOSITORY / "tests" / "conftest.py").read_text()
    suite.write(conftest=measuring, test_ended=ended, test_runs=runs, test_then_ends=ends)
    code, output = suite.run()
    assert code == 0, output
    lines = output.splitlines()
    (title,) = (number for number, line in enumerate(lines) if line.startswith("most CPU time, of "))
    assert {line.split()[2] for line in lines[title + 1 : title + 3]} == {"test_ended.py", "test_runs.py"}
    assert "test_then_ends.py" not in lines[title + 3]
    times = suite.text(".cache/test-times.txt").splitlines()
    assert times[0].split() == ["CPU", "s", "s", "tests"]
    assert {line.split()[3] for line in times[1:]} == {"test_ended.py", "test_runs.py", "test_then_ends.py"}


STRANGE = (
    ONCE + "import pytest\n@pytest.mark.parametrize('what', ['a b', 'c::d', '[e]', 'f, g', '-n 3', 'ü'])\n"
    "def test_strange(what):\n    assert not once('mark' + what.encode().hex())\n"
)
"""Tests whose names are hard to find again."""
SLEEPS = "import pytest, time\n@pytest.fixture\ndef slow():\n    time.sleep(0.7)\n"
SLEEPS += "def test_a(slow):\n    time.sleep(0.7)\ndef test_b():\n    time.sleep(0.1)\n"
BESIDE = "def test_beside():\n    open('beside', 'a').write('ran\\n')\n"
LEFT_OUT = "import pytest\n@pytest.mark.slow\ndef test_left_out():\n    assert 0\n"


def _fixture(scope: str, when: str) -> str:
    """A fixture that fails by chance."""
    fails = f"    assert not once('{scope}-{when}')\n"
    before, after = (fails, "") if when == "before" else ("", fails)
    text = ONCE + f"import pytest\n@pytest.fixture(scope='{scope}')\ndef thing():\n{before}    yield\n{after}"
    return text + "def test_a(thing):\n    pass\ndef test_b(thing):\n    pass\n"


def test_what_passes_the_second_time_is_green_and_named(suite: Suite) -> None:
    """And nothing else runs again. What takes longest is listed once, with its set-up."""
    suite.write(
        test_flaky=FLAKY + BESIDE + LEFT_OUT,
        test_beside=BESIDE,
        test_strange=STRANGE,
        test_sleeps=SLEEPS,
        test_before=_fixture("module", "before"),
        test_session=_fixture("session", "before"),
        test_after=_fixture("module", "after"),
    )
    code, output = suite.run(*BESIDE_OTHERS, "-m", "not slow")
    assert code == 0, output
    lines = output.splitlines()
    assert "E       AssertionError: by chance" in output
    (flaky,) = (line for line in lines if line.startswith("flaky: "))
    assert "test_flaky.py::test_flaky" in flaky
    assert flaky.count("test_strange.py::test_strange[") == 6
    for fixture in ("test_before.py", "test_session.py", "test_after.py"):
        assert f"{fixture}::test_b" in flaky
    assert flaky.count("::") == 13 and "12 passed" in lines[-1]  # one name has a "::" of its own
    assert suite.count("beside") == 2
    assert "test_left_out" not in output
    (files,) = (number for number, line in enumerate(lines) if line == "slowest files:")
    assert lines[files + 1].split()[1:] == ["s", "test_sleeps.py"]
    assert lines[files + 2] == "slowest tests:"
    assert lines[files + 3].split()[1:] == ["s", "test_sleeps.py::test_a"]


def test_the_second_run_does_not_depend_on_a_cache_of_pytest(suite: Suite) -> None:
    code, output = suite.write(test_one=FLAKY, test_two=GREEN).run("-p", "no:cacheprovider")
    assert code == 0
    assert "1 failed, 1 passed" in output
    assert "flaky: test_one.py::test_flaky" in output.splitlines()
    assert "1 passed" in output.splitlines()[-1]


@pytest.mark.parametrize("arguments", [["-x"], ["-x", *BESIDE_OTHERS]], ids=["in one process", "in workers"])
def test_what_fails_twice_is_red_and_what_passed_is_still_named(suite: Suite, arguments: list[str]) -> None:
    """No failure keeps the other tests from running."""
    ends = "import pytest\n@pytest.fixture(scope='module')\ndef thing():\n    yield\n    assert 0\n"
    ends += "def test_a(thing):\n    pass\n"
    red = "def test_red():\n    assert 0\n"
    code, output = suite.write(test_ends=ends, test_one=FLAKY, test_two=red).run(*arguments)
    assert code == 1
    assert output.count("FAILED test_two.py::test_red") == 2
    assert output.count("ERROR test_ends.py::test_a") == 2
    assert "flaky: test_one.py::test_flaky" in output.splitlines()
    assert "1 failed, 2 passed, 1 error" in output.splitlines()[-1]


def test_failures_of_earlier_runs_are_not_counted(suite: Suite) -> None:
    suite.write(test_one="def test_red():\n    assert 0\n", test_two=GREEN)
    assert suite.run()[0] == 1
    code, output = suite.run("test_two.py")
    assert code == 0
    assert "again" not in output


def test_a_fixture_of_the_session_that_fails_by_chance_at_its_end(suite: Suite) -> None:
    code, output = suite.write(test_one=_fixture("session", "after")).run()
    assert code == 0
    assert "flaky: test_one.py::test_b" in output.splitlines()


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


def test_many_failures_are_not_chance(suite: Suite) -> None:
    text = "import pytest\n@pytest.mark.parametrize('n', range(51))\ndef test_red(n):\n    assert 0\n"
    code, output = suite.write(test_one=text).run()
    assert code == 1
    assert "not run again: 51 tests failed, more than 50: that is not chance" in output
