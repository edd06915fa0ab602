"""`millstream pipeline` as a person or a script uses it, without Spark."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from millstream.cli import exit_codes
from millstream.pipeline.state import Phase, QueryProgress, Running
from tests.integration.cli.conftest import Run, offline, run  # noqa: F401  # fixtures
from tests.system.pipeline.definitions import pipeline_text


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MILLSTREAM_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pipeline.yaml"
    path.write_text(pipeline_text())
    return path


def test_a_valid_file_is_accepted(offline: Run, file: Path) -> None:  # noqa: F811
    outcome = offline("pipeline", "validate", file)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out == f"{file}: pipeline 'shop' is valid (1 source, 0 steps, 1 sink)\n"
    assert offline("pipeline", "validate", file.parent).code == 0  # a directory with a pipeline.yaml
    assert offline("pipeline", "validate", "--json", file).json() == {
        "file": str(file),
        "pipeline": "shop",
        "valid": True,
        "problems": [],
    }


def test_a_file_with_mistakes_shows_where(offline: Run, file: Path) -> None:  # noqa: F811
    file.write_text(pipeline_text(sinks="out: {from: order, topic: o}"))
    outcome = offline("pipeline", "validate", file)
    assert outcome.code == exit_codes.FAILED
    lines = outcome.out.splitlines()
    assert lines[0] == f"{file}:9:15: error: there is no source, step or branch 'order'; did you mean 'orders'?"
    assert lines[1] == "      out: {from: order, topic: o}"
    assert lines[2].index("^") == lines[1].index("order")
    (problem,) = offline("pipeline", "validate", "--json", file).json()["problems"]
    assert (problem["line"], problem["column"], problem["severity"]) == (9, 15, "error")
    for command in (("graph",), ("run",)):
        outcome = offline("pipeline", *command, file)
        assert outcome.code == exit_codes.FAILED and "did you mean 'orders'?" in outcome.err


def test_a_file_that_is_not_there(offline: Run, file: Path) -> None:  # noqa: F811
    outcome = offline("pipeline", "validate", file.with_name("pipline.yaml"))
    assert outcome.code == exit_codes.NOT_FOUND
    assert "other files there: pipeline.yaml" in outcome.err


def test_the_graph_is_drawn_as_svg_and_text(offline: Run, file: Path) -> None:  # noqa: F811
    picture = file.with_name("flow.svg")
    assert offline("pipeline", "graph", file, "-o", picture).code == 0
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    assert "│ orders" in offline("pipeline", "graph", file, "--ascii").out
    assert offline("pipeline", "graph", file).out == picture.read_text()
    assert offline("pipeline", "graph", file, "-o", "flow.png").code == exit_codes.USAGE
    assert offline("pipeline", "graph", file, "--ascii", "-o", picture).code == exit_codes.USAGE


def test_init_writes_a_project_that_is_valid(
    offline: Run,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = offline("pipeline", "init", "--list", "--json").json()
    assert "orders-revenue" in [each["name"] for each in known] and all(each["summary"] for each in known)
    for each in known:
        project = tmp_path / each["name"]
        outcome = offline("pipeline", "init", project, "--example", each["name"])
        assert outcome.code == 0 and "pipeline.yaml" in outcome.out
        assert offline("pipeline", "validate", project).code == 0
        assert (project / "generate.py").is_file()
    again = offline("pipeline", "init", tmp_path / "orders-revenue")
    assert again.code == exit_codes.EXISTS and "pipeline.yaml" in again.err
    monkeypatch.chdir(tmp_path)
    assert offline("pipeline", "init", "--example", "click-sessions").code == exit_codes.EXISTS  # ./click-sessions
    assert offline("pipeline", "init", ".").code == 0 and (tmp_path / "pipeline.yaml").is_file()
    wrong = offline("pipeline", "init", tmp_path / "x", "--example", "orders-revenu")
    assert wrong.code == exit_codes.NOT_FOUND and "did you mean 'orders-revenue'?" in wrong.err


def test_run_without_spark_says_what_to_install(
    offline: Run,  # noqa: F811
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    for command in (("run", file), ("skew", "orders"), ("validate", "--deep", file)):
        outcome = offline("pipeline", *command)
        assert outcome.code == exit_codes.FAILED
        assert (
            outcome.err == "millstream: this needs pyspark, which is not installed: pip install 'millstream[spark]'\n"
        )


def test_without_yaml_the_other_commands_work(file: Path) -> None:
    """In a process of its own: what is imported here already cannot be taken away cleanly."""
    script = (
        "import sys; sys.modules['yaml'] = sys.modules['pyspark'] = sys.modules['pyarrow'] = None\n"
        "from millstream.cli.main import main\n"
        "assert main(['--help']) == 0 and main(['pipeline', '--help']) == 0\n"
        f"assert main(['pipeline', 'validate', {str(file)!r}]) == 1\n"
    )
    outcome = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert outcome.returncode == 0, outcome.stderr
    assert "this needs pyyaml, which is not installed: pip install 'millstream[spark]'" in outcome.stderr


def test_two_ways_to_spark_are_one_too_many(offline: Run, file: Path) -> None:  # noqa: F811
    outcome = offline("pipeline", "run", file, "--master", "local[1]", "--remote", "sc://x")
    assert outcome.code == exit_codes.USAGE


def test_status_and_stop_of_what_never_ran(offline: Run, file: Path) -> None:  # noqa: F811
    assert offline("pipeline", "status").out == "no pipeline has run on this machine yet\n"
    assert offline("pipeline", "status", "--json").json() == []
    assert offline("pipeline", "status", file).code == exit_codes.NOT_FOUND
    outcome = offline("pipeline", "stop", "shop")
    assert outcome.code == exit_codes.NOT_FOUND and "it never has" in outcome.err


def test_status_of_one_that_runs_and_ends(run: Run, file: Path, millstream_broker: object) -> None:  # noqa: F811
    """Lag is the broker's word: what the group has not committed."""
    import millstream
    from millstream.raw_client import Cluster, TopicPartition
    from millstream.testing import EmbeddedBroker

    assert isinstance(millstream_broker, EmbeddedBroker)
    address = millstream_broker.bootstrap_servers
    with millstream.connect(address) as client, Cluster(address) as cluster:
        client.create_topic("status-orders", partitions=2)
        client.publish_many("status-orders", ((str(number), "x") for number in range(50)))
        cluster.commit_offsets("shop.out", {TopicPartition("status-orders", 0): 5})
    progress = QueryProgress(
        query="shop.out",
        sink="out",
        group="shop.out",
        topics=("status-orders",),
        batch=7,
        batch_ms=120,
        rows_in_total=45,
    )
    with Running("shop", str(file), address) as running:
        running.update(phase=Phase.RUNNING)
        running.report(progress)
        (document,) = run("pipeline", "status", "shop", "--json").json()
        assert document["phase"] == "running"
        assert document["queries"][0]["lag"] == 45
        shown = run("pipeline", "status", file)
        assert shown.code == 0 and "shop  running" in shown.out and "120 ms" in shown.out
        assert "shop" in run("pipeline", "status").out
        late = run("pipeline", "stop", file, "--timeout", 0.1)
        assert late.code == exit_codes.TIMED_OUT and running.stop_requested
    outcome = run("pipeline", "stop", "shop")
    assert outcome.code == exit_codes.NOT_FOUND and "it finished" in outcome.err


def test_status_of_one_that_failed(offline: Run, file: Path) -> None:  # noqa: F811
    with pytest.raises(RuntimeError), Running("shop", str(file), "localhost:1"):
        raise RuntimeError("the table is gone")
    outcome = offline("pipeline", "status", "shop")
    assert outcome.code == exit_codes.UNWELL and "error: the table is gone" in outcome.out
    wrong = offline("pipeline", "status", "shap")
    assert wrong.code == exit_codes.NOT_FOUND and "did you mean 'shop'?" in wrong.err
