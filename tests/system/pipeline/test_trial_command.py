"""`millstream pipeline test` as a person or a CI job uses it: codes, -k, --json, --watch; the example of the docs."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest
from pyspark.sql import SparkSession

from millstream.cli import exit_codes
from millstream.cli.pipeline import test as command
from tests.integration.cli.conftest import Run, offline  # noqa: F401  # a fixture
from tests.system.pipeline.definitions import DOCS, documented, messages

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]

PIPELINE = """
name: trial
sources:
  orders: {topic: orders, format: json, schema: "id STRING, amount DOUBLE"}
steps:
  priced:
    sql: SELECT id, amount * 2 AS price FROM orders
sinks:
  out: {from: priced, topic: out}
"""
TESTS = """
tests:
  twice the amount:
    inputs: {orders: [{id: a, amount: 2}]}
    expect: {out: [{id: a, price: 4}]}
  something else:
    inputs: {orders: [{id: a, amount: 2}]}
    expect: {out: [{id: a, price: 5}]}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    (tmp_path / "pipeline.test.yaml").write_text(TESTS)
    return tmp_path


@pytest.fixture
def shared_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command runs in the session of the tests instead of one of its own."""

    @contextmanager
    def session(name: str, master: str, settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(command, "short_session", session)


@pytest.mark.usefixtures("shared_session")
def test_pipeline_test_shows_differences_and_exits_with_1(offline: Run, project: Path) -> None:  # noqa: F811
    """0 if all pass, 1 with the difference and its line if one does not; `-k` picks; JSON says the same."""
    passed = offline("pipeline", "test", project, "-k", "twice")
    assert (passed.code, passed.err) == (0, "")
    assert re.fullmatch(r"ok      twice the amount\n1 passed, 0 failed in [\d.]+ s\n", passed.out)

    differs = offline("pipeline", "test", project)
    assert differs.code == exit_codes.FAILED
    assert "ok      twice the amount\nFAILED  something else\n" in differs.out
    assert f"{project}/pipeline.test.yaml:8: out differs" in differs.out
    assert "~ {id: 'a'}  price: expected 5, got 4.0" in differs.out
    assert "1 passed, 1 failed" in differs.out

    both = offline("pipeline", "test", project, "--json")
    assert both.code == exit_codes.FAILED
    assert both.json() == [
        {"test": "twice the amount", "passed": True, "failures": [], "differences": {}, "not_run": []},
        {
            "test": "something else",
            "passed": False,
            "failures": [],
            "differences": {"out": ["~ {id: 'a'}  price: expected 5, got 4.0"]},
            "not_run": [],
        },
    ]


def test_bad_files_end_before_spark_starts(
    offline: Run,  # noqa: F811
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "short_session", lambda *_: pytest.fail("Spark was started"))
    none = offline("pipeline", "test", project, "-k", "no such test")
    assert none.code == exit_codes.NOT_FOUND
    assert "no test matches no such test; there are: twice the amount, something else" in none.err

    (project / "pipeline.test.yaml").write_text(TESTS.replace("orders: [{id", "order: [{id"))
    wrong = offline("pipeline", "test", project)
    assert wrong.code == exit_codes.FAILED
    assert "the tests are not valid" in wrong.err
    assert "did you mean 'orders'?" in wrong.err

    (project / "pipeline.yaml").write_text(PIPELINE.replace("from: priced", "from: price"))
    wrong = offline("pipeline", "test", project)
    assert wrong.code == exit_codes.FAILED
    assert "the pipeline is not valid" in wrong.err
    assert "did you mean 'priced'?" in wrong.err

    (project / "pipeline.test.yaml").unlink()
    missing = offline("pipeline", "test", project)
    assert missing.code == exit_codes.NOT_FOUND
    assert "pipeline.test.yaml; write one" in missing.err


@pytest.mark.usefixtures("shared_session")
def test_watch_runs_again_after_a_change(
    offline: Run,  # noqa: F811
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A mistake while editing is told and ends nothing; a changed module is imported again."""
    (project / "pipeline.test.yaml").write_text(dedent(TESTS.partition("  something")[0]))
    with_python = PIPELINE.replace(
        "sql: SELECT id, amount * 2 AS price FROM orders", "python: {function: trial_code:priced, from: orders}"
    )
    code = "def priced(rows):\n    return rows.selectExpr('id', 'amount * {} AS price')\n"
    edits = iter(
        [
            lambda: (project / "pipeline.yaml").write_text("name: [\n"),
            lambda: [
                (project / "trial_code.py").write_text(code.format("3")),
                (project / "pipeline.yaml").write_text(with_python),
            ],
            lambda: (project / "trial_code.py").write_text(code.format("2")),
        ]
    )

    def next_edit(run: command._Run) -> None:
        assert not run.has_changed()
        edit = next(edits, None)
        if edit is None:
            raise KeyboardInterrupt
        edit()
        assert run.has_changed()

    monkeypatch.setattr(command._Run, "wait_for_change", next_edit)
    outcome = offline("pipeline", "test", project, "--watch")
    assert [line.split("  ")[0].strip() for line in outcome.out.splitlines() if "twice" in line] == [
        "ok",
        "FAILED",
        "ok",
    ]
    assert "the pipeline is not valid" in outcome.err


def test_changed_files_of_a_pipeline_are_noticed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipeline, its tests, Python files beside it, also new and removed ones, and what changed during the run."""
    run = command._Run(project / "pipeline.yaml", project / "pipeline.test.yaml", (), False)

    def changes(*, by: Path, text: str | None) -> bool:
        run._seen = run._files()
        assert not run.has_changed()
        if text is None:
            by.unlink()
        else:
            by.write_text(text)
        return run.has_changed()

    assert changes(by=project / "pipeline.yaml", text="a")
    assert changes(by=project / "pipeline.test.yaml", text="b")
    assert changes(by=project / "code.py", text="c")
    assert changes(by=project / "code.py", text="d")
    assert changes(by=project / "code.py", text=None)
    assert changes(by=project / "pipeline.test.yaml", text=None)
    assert not changes(by=project / "notes.txt", text="e")

    saved_during_the_run = project / "pipeline.yaml"
    monkeypatch.setattr(command, "_pipeline_and_cases", lambda *_: (saved_during_the_run.write_text("f"), []))
    assert run.once(None)  # type: ignore[arg-type]  # no test, so no session
    assert run.has_changed()


@pytest.mark.usefixtures("shared_session")
def test_the_example_of_the_documentation(
    offline: Run,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tests in docs/pipelines.md pass for the whole file in docs/pipelines.md."""
    monkeypatch.setenv("KAFKA_PASSWORD", "secret")
    found = documented(tmp_path)
    assert found.pipeline is not None, messages(found)
    text = re.search(r"```yaml\n(tests:.*?)```", DOCS.read_text(), re.DOTALL)
    assert text is not None
    (tmp_path / "pipeline.test.yaml").write_text(text[1])
    outcome = offline("pipeline", "test", tmp_path)
    assert outcome.code == 0, outcome.out + outcome.err


@pytest.mark.slow
def test_pipeline_test_runs_in_a_process_of_its_own(project: Path) -> None:
    """With a Spark session of its own: JSON alone on stdout, and the code."""
    for only, code in (("twice", exit_codes.OK), ("else", exit_codes.FAILED)):
        ended = subprocess.run(
            [sys.executable, "-m", "millstream", "pipeline", "test", str(project), "-k", only, "--json"],
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert ended.returncode == code, ended.stderr
        (document,) = json.loads(ended.stdout)
        assert document["passed"] is (code == exit_codes.OK)
