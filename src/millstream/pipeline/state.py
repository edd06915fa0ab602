"""The state of a pipeline on disk, for `status` and `stop`; and the names derived from a pipeline.

    <state home>/<pipeline>/
        lock            held (flock) by the process that runs the pipeline
        run.json        RunState: file, process, start time, how it ended
        progress.json   one QueryProgress for each query, rewritten after every batch
        stop            if it exists, the running pipeline stops after the batch
        checkpoints/    unless the file names another location

The engine writes (`Running`), the commands read (`read_state`, `request_stop`). Files are replaced atomically.

Names of queries, consumer groups and checkpoints depend only on the pipeline and the sink, so they stay the same when
other parts of the file change.
"""

import fcntl
import json
import os
import socket
import time
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from millstream.pipeline.model import Pipeline, Route, Sink, TopicSource

STATE_HOME_VARIABLE = "MILLSTREAM_STATE_HOME"


def query_name(pipeline: str, sink: str) -> str:
    """The name of the streaming query of a sink."""
    return f"{pipeline}.{sink}"


def dead_letter_query_name(pipeline: str, step: str) -> str:
    """The name of the query that sends the dead letters of a source or route."""
    return f"{pipeline}.{step}.dead-letters"


def quarantine_query_name(pipeline: str, part: str, *, of_sink: bool) -> str:
    """The name of the query that sends the quarantined rows of a part. A sink may have the name of a step."""
    return f"{pipeline}.{part}.{'sink-quarantine' if of_sink else 'quarantine'}"


def consumer_group(pipeline: str, sink: Sink | Route, source: TopicSource) -> str:
    """The group to which the query of a sink (or of a route's dead letters) commits its progress in `source`."""
    if isinstance(sink, Route):
        return dead_letter_query_name(pipeline, sink.name)
    return source.group or query_name(pipeline, sink.name)


def checkpoint_location(pipeline: Pipeline, query: str, override: str | None = None) -> str:
    """The checkpoint of a query: below `override` (--checkpoint-dir), or in the location that the file names."""
    root = override or pipeline.checkpoint
    leaf = query.removeprefix(f"{pipeline.name}.")
    if root is None:
        return str(state_directory(pipeline.name) / "checkpoints" / leaf)
    return f"{root.rstrip('/')}/{pipeline.name}/{leaf}"


def state_home() -> Path:
    """The directory with the state of all pipelines on this machine."""
    chosen = os.environ.get(STATE_HOME_VARIABLE)
    if chosen:
        return Path(chosen).absolute()
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "millstream" / "pipelines"


def state_directory(pipeline: str) -> Path:
    return state_home() / pipeline


class Phase(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    FINISHED = "finished"
    FAILED = "failed"
    GONE = "gone"
    """Never written: the files say that it runs, but no process holds the lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceProgress:
    """How far one query has read one source."""

    source: str
    """The name in the file."""
    rows: int = 0
    """In the last batch."""
    rows_total: int = 0
    rows_per_second: float = 0.0
    lag: int | None = None
    """Records that are not read yet; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputProgress:
    """What a shared query wrote to one of its outputs."""

    sink: str
    """The name of the sink, or the origin of dead letters."""
    rows: int = 0
    """In the last batch."""
    rows_total: int = 0
    rows_per_second: float | None = None
    dead_letters: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProgress:
    """The rows that came out of a step, or out of a branch of a route."""

    step: str
    rows: int = 0
    """In the last batch."""
    rows_total: int = 0
    rows_per_second: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleProgress:
    """The counts of one expectation since the run began."""

    kind: str
    """sink, or part (a source or step)."""
    part: str
    rule: str
    action: str = ""
    rows_total: int = 0
    violations_total: int = 0
    violations: int = 0
    """In the last batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryProgress:
    query: str
    sink: str
    """The name of the sink; of a shared query, the names of all its outputs."""
    group: str | None = None
    """The consumer group to which progress is committed."""
    topics: tuple[str, ...] = ()
    batch: int = -1
    batch_ms: int | None = None
    sources: tuple[SourceProgress, ...] = ()
    rows_in_total: int = 0
    rows_out: int | None = None
    rows_out_total: int | None = None
    rows_in_per_second: float = 0.0
    rows_out_per_second: float | None = None
    state_rows: int | None = None
    state_bytes: int | None = None
    dropped_late_rows: int = 0
    watermark: str | None = None
    dead_letters_total: int | None = None
    updated_ms: int = 0
    active: bool = True
    error: str | None = None
    outputs: tuple[OutputProgress, ...] = ()
    """Of a shared query; empty if it has one output."""
    steps: tuple[StepProgress, ...] = ()
    """The steps whose rows this query counts. Rows that only a sink reads are counted there."""
    expectations: tuple[RuleProgress, ...] = ()
    durations_ms: dict[str, int] = field(default_factory=dict)
    """The parts of the last batch, by Spark's names."""
    trigger_ms: int | None = None
    recent: tuple[tuple[int, int, int, int], ...] = ()
    """The last batches with rows, oldest first: batch, end (ms since 1970), duration (ms), rows read."""

    @property
    def by_output(self) -> "tuple[QueryProgress, ...]":
        """The progress with the rows of each output; itself, if it has one."""
        return tuple(
            replace(
                self,
                sink=each.sink,
                rows_out=each.rows,
                rows_out_total=each.rows_total,
                rows_out_per_second=each.rows_per_second,
                dead_letters_total=each.rows_total if each.dead_letters else None,
                outputs=(),
                steps=(),
                expectations=(),
            )
            for each in self.outputs
        ) or (self,)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    pipeline: str
    file: str
    bootstrap: str
    pid: int
    host: str
    started_ms: int
    phase: Phase = Phase.STARTING
    ended_ms: int | None = None
    error: str | None = None
    spark_ui: str | None = None
    metrics: str | None = None
    """The address of the Prometheus page, when there is one."""
    master: str | None = None


class AlreadyRunningError(Exception):
    """Another process on this machine runs this pipeline."""


class StateError(Exception):
    """The files of a pipeline's state cannot be read or written."""


class Running:
    """The state of a pipeline while this process runs it. Entering takes the lock; leaving records how the run
    ended."""

    def __init__(self, pipeline: str, file: str, bootstrap: str, **details: Any) -> None:
        self._directory = state_directory(pipeline)
        self._state = RunState(
            pipeline=pipeline,
            file=str(Path(file).absolute()),
            bootstrap=bootstrap,
            pid=os.getpid(),
            host=socket.gethostname(),
            started_ms=_now_ms(),
            **details,
        )
        self._progress: dict[str, QueryProgress] = {}
        self._lock: int | None = None

    def __enter__(self) -> Self:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StateError(
                f"the state of the pipeline cannot be written to {self._directory}: {error.strerror}; set "
                "MILLSTREAM_STATE_HOME to another directory"
            ) from error
        if not _locked_soon(descriptor):
            os.close(descriptor)
            other = _read_run(self._directory)
            who = f"process {other.pid} on {other.host} ({other.file})" if other else "another process"
            raise AlreadyRunningError(
                f"pipeline {self._state.pipeline!r} is already running: {who}; "
                f"`millstream pipeline stop {self._state.pipeline}` stops it"
            )
        self._lock = descriptor
        (self._directory / "stop").unlink(missing_ok=True)
        (self._directory / "progress.json").unlink(missing_ok=True)
        self._write_state()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        if error is None or interrupted:
            self.update(phase=Phase.FINISHED, ended_ms=_now_ms())
        else:
            self.update(phase=Phase.FAILED, ended_ms=_now_ms(), error=str(error) or type(error).__name__)
        (self._directory / "stop").unlink(missing_ok=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def state(self) -> RunState:
        return self._state

    def update(self, **changes: Any) -> None:
        """Change phase, error, spark_ui, metrics, … of run.json."""
        self._state = replace(self._state, **changes)
        self._write_state()

    def document(self) -> dict[str, Any]:
        """The run and its queries, as JSON."""
        return {**asdict(self._state), "queries": [asdict(each) for each in self._progress.values()]}

    def report(self, progress: QueryProgress) -> None:
        """Records the progress of a query; replaces its earlier progress."""
        self._progress[progress.query] = progress
        _write_json(self._directory / "progress.json", [asdict(each) for each in self._progress.values()])

    @property
    def stop_requested(self) -> bool:
        return (self._directory / "stop").exists()

    def _write_state(self) -> None:
        _write_json(self._directory / "run.json", asdict(self._state))


@dataclass(frozen=True, slots=True)
class PipelineState:
    """The state of a pipeline that runs, or ran, on this machine."""

    run: RunState
    queries: tuple[QueryProgress, ...]


def read_state(pipeline: str) -> PipelineState | None:
    """None if it never ran on this machine."""
    directory = state_directory(pipeline)
    run = _read_run(directory)
    if run is None:
        return None
    if run.phase in (Phase.STARTING, Phase.RUNNING, Phase.STOPPING) and not is_locked(pipeline):
        run = replace(run, phase=Phase.GONE)
    return PipelineState(run, _read_progress(directory))


def known_pipelines() -> list[str]:
    """The pipelines that run, or ran, on this machine."""
    home = state_home()
    if not home.is_dir():
        return []
    return sorted(entry.name for entry in home.iterdir() if (entry / "run.json").is_file())


def is_locked(pipeline: str) -> bool:
    """Whether a process runs this pipeline right now."""
    try:
        descriptor = os.open(state_directory(pipeline) / "lock", os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def request_stop(pipeline: str) -> None:
    """Requests the running pipeline to stop after its batch."""
    (state_directory(pipeline) / "stop").touch()


def wait_until_ended(pipeline: str, timeout_s: float) -> bool:
    """Whether the running pipeline ended within the timeout."""
    deadline = time.monotonic() + timeout_s
    while is_locked(pipeline):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.1)
    return True


def _locked_soon(descriptor: int) -> bool:
    """Tries several times, because `is_locked` takes the lock for a moment."""
    for _ in range(10):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(0.05)
    return False


def _read_run(directory: Path) -> RunState | None:
    document = _read_json(directory / "run.json")
    if not isinstance(document, dict):
        return None
    try:
        return RunState(**{**document, "phase": Phase(document["phase"])})
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"{directory / 'run.json'} was written by another version of Millstream: {error}") from error


def _read_progress(directory: Path) -> tuple[QueryProgress, ...]:
    document = _read_json(directory / "progress.json") or []
    try:
        return tuple(
            QueryProgress(
                **{
                    **entry,
                    "topics": tuple(entry["topics"]),
                    "sources": tuple(SourceProgress(**source) for source in entry["sources"]),
                    "recent": tuple(tuple(each) for each in entry.get("recent", ())),
                    "outputs": tuple(OutputProgress(**each) for each in entry.get("outputs", ())),
                    "steps": tuple(StepProgress(**each) for each in entry.get("steps", ())),
                    "expectations": tuple(RuleProgress(**each) for each in entry.get("expectations", ())),
                }
            )
            for entry in document
        )
    except (KeyError, TypeError) as error:
        raise StateError(
            f"{directory / 'progress.json'} was written by another version of Millstream: {error}"
        ) from error


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StateError(f"{path} is not JSON: {error}") from error


def _write_json(path: Path, document: object) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(document, indent=1))
    draft.replace(path)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
