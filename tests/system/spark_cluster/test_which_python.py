"""Which Python tasks run with: as the settings say, else this one where the cluster is on this machine."""

import os
import sys
from pathlib import Path

import pytest

from millstream.spark.session import session
from millstream.spark.session.session import _choose_python

VARIABLES = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


@pytest.mark.parametrize(
    ("master", "settings", "expected"),
    [
        ("local[2]", {}, ("/forks", "/forks")),
        ("local[2]", {"spark.pyspark.python": "/opt/python"}, ("/opt/python", None)),
        ("spark://127.0.0.1:7077", {}, (sys.executable, sys.executable)),
        ("spark://spark-1:7077", {}, (None, None)),
        ("spark://spark-1:7077", {"spark.pyspark.python": "/opt/python"}, ("/opt/python", None)),
        ("spark://127.0.0.1:7077", {"spark.pyspark.python": "/opt/python"}, ("/opt/python", None)),
        (
            "yarn",
            {"spark.pyspark.python": "/opt/python", "spark.pyspark.driver.python": "/usr/bin/python3"},
            ("/opt/python", "/usr/bin/python3"),
        ),
    ],
)
def test_the_python_of_executors_is_chosen_by_the_master(
    monkeypatch: pytest.MonkeyPatch, master: str, settings: dict[str, str], expected: tuple[str | None, str | None]
) -> None:
    monkeypatch.setattr(session, "start_worker_server", lambda: Path("/forks"))
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # noted, so that it is as it was afterwards
        monkeypatch.delenv(name)
    _choose_python(master, settings)
    assert tuple(os.environ.get(name) for name in VARIABLES) == expected


@pytest.mark.parametrize(
    ("given", "server", "expected"),
    [
        (("mine", None), "/forks", ("mine", sys.executable)),
        ((None, "mine"), "/forks", (sys.executable, "mine")),
        ((sys.executable, sys.executable), "/forks", ("/forks", "/forks")),
        ((None, None), None, (sys.executable, sys.executable)),
    ],
)
def test_python_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
    given: tuple[str | None, str | None],
    server: str | None,
    expected: tuple[str, str],
) -> None:
    """Processes are forks only if the user chose no Python, and the system has what forks need."""
    monkeypatch.setattr(session, "start_worker_server", lambda: Path(server) if server else None)
    for name, value in zip(VARIABLES, given, strict=True):
        monkeypatch.setenv(name, value or "")
        if value is None:
            monkeypatch.delenv(name)
    _choose_python("local[2]", {})
    assert tuple(os.environ.get(name) for name in VARIABLES) == expected
