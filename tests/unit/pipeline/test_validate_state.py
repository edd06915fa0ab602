"""What a running pipeline leaves on disk, and what others read of it."""

import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from millstream.pipeline.state import (
    AlreadyRunningError,
    Phase,
    QueryProgress,
    Running,
    SourceProgress,
    StateError,
    is_locked,
    known_pipelines,
    read_state,
    request_stop,
    wait_until_ended,
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MILLSTREAM_STATE_HOME", str(tmp_path))
    return tmp_path


def test_the_state_of_a_run_is_kept_from_start_to_end() -> None:
    assert read_state("shop") is None and known_pipelines() == []
    progress = QueryProgress(
        query="shop.out",
        sink="out",
        group="shop.out",
        topics=("orders",),
        batch=3,
        sources=(SourceProgress(source="orders", rows=5, rows_total=10, lag=2),),
        rows_in_total=10,
    )
    with Running("shop", "pipeline.yaml", "localhost:9092", master="local[2]") as running:
        running.update(phase=Phase.RUNNING)
        running.report(progress)
        state = read_state("shop")
        assert state is not None
        assert (state.run.phase, state.run.master, state.queries) == (Phase.RUNNING, "local[2]", (progress,))
        assert is_locked("shop") and not running.stop_requested
        request_stop("shop")
        assert running.stop_requested
    state = read_state("shop")
    assert state is not None and state.run.phase is Phase.FINISHED and state.run.ended_ms is not None
    assert not is_locked("shop") and known_pipelines() == ["shop"]
    assert wait_until_ended("shop", 0)


def test_the_error_of_a_failed_run_is_kept() -> None:
    with pytest.raises(ValueError, match="no luck"), Running("shop", "f", "b:1"):
        raise ValueError("no luck")
    state = read_state("shop")
    assert state is not None and (state.run.phase, state.run.error) == (Phase.FAILED, "no luck")


def test_a_request_to_stop_is_of_one_run() -> None:
    with Running("shop", "f", "b:1"):
        request_stop("shop")
    with Running("shop", "f", "b:1") as again:
        assert not again.stop_requested


def test_two_cannot_run_the_same_pipeline() -> None:
    with Running("shop", "f", "b:1"), pytest.raises(AlreadyRunningError, match="millstream pipeline stop shop"):
        Running("shop", "f", "b:1").__enter__()
    with Running("shop", "f", "b:1"), Running("other", "f", "b:1"):
        assert known_pipelines() == ["other", "shop"]


def _run_until_killed(ready: Connection) -> None:
    with Running("shop", "f", "b:1") as running:
        running.update(phase=Phase.RUNNING)
        ready.send("running")
        ready.recv()


def test_a_killed_process_is_gone() -> None:
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_run_until_killed, args=(there,))
    process.start()
    assert here.recv() == "running"
    assert is_locked("shop") and not wait_until_ended("shop", 0)
    process.kill()
    process.join(10)
    assert wait_until_ended("shop", 10)
    state = read_state("shop")
    assert state is not None and state.run.phase is Phase.GONE


@pytest.mark.parametrize("content", ["{", '{"phase": "running"}', '{"phase": "flying"}'])
def test_files_of_others_are_refused(home: Path, content: str) -> None:
    (home / "shop").mkdir()
    (home / "shop" / "run.json").write_text(content)
    with pytest.raises(StateError, match=r"run\.json"):
        read_state("shop")
