"""Runs a pipeline: prepares Spark and the topics, starts the queries, and reports until all are done.

Progress goes to the live view (or as JSON lines to stdout), to the state files for `pipeline status`, and to the
Prometheus page.
"""

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.admin.pipeline_status import StatusPublisher
from millstream.pipeline.drawing.graph import graph_of, to_document
from millstream.pipeline.engine import realtime
from millstream.pipeline.engine.dead_letters import DeadLetterWatch
from millstream.pipeline.engine.expectations import kind_of
from millstream.pipeline.engine.failures import Part, PartFailedError, PipelineFailedError
from millstream.pipeline.engine.live_view import LiveView
from millstream.pipeline.engine.progress import MetricsServer, PipelineMetrics, ProgressTracker, Report
from millstream.pipeline.engine.supervision import RunResult, StopSignal, Supervisor, Watched
from millstream.pipeline.lineage import Columns, LineageEvents, LineageSender
from millstream.pipeline.model import Pipeline, TopicSink, TopicSource, TriggerKind
from millstream.pipeline.problems import nearest
from millstream.pipeline.state import Phase, QueryProgress, Running, checkpoint_location, state_directory
from millstream.raw_client import Cluster, ErrorCode, RefusedError, WireError
from millstream.spark.session.session import (
    STREAM_SETTINGS,
    SparkStartError,
    is_local_path,
    is_remote,
    start_in_background,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millstream.pipeline.engine.planned import PlannedQuery
    from millstream.pipeline.engine.queries import BuiltQuery, StartedQuery
    from millstream.pipeline.engine.shared_checkpoints import Division


_RESPONSE_TIMEOUT_SECONDS = 15.0


class NoBrokerError(PipelineFailedError):
    """No broker responds at the bootstrap address, or it refuses the connection."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class TopicsReady:
    """The topics that were created."""

    created: tuple[str, ...]


def prepare_topics(pipeline: Pipeline, *, bootstrap: str | None = None) -> TopicsReady:
    """Topics of sources must exist; missing topics of sinks are created with the brokers' defaults."""
    where = bootstrap or pipeline.bootstrap
    try:
        with Cluster(
            where, pipeline.connection, client_id=f"pipeline-{pipeline.name}", timeout_s=_RESPONSE_TIMEOUT_SECONDS
        ) as cluster:
            there = set(cluster.topics())
            _check_sources(pipeline, there, where)
            return TopicsReady(tuple(_create_missing(cluster, pipeline, there)))
    except WireError as error:
        raise NoBrokerError(f"the brokers at {where}: {error}") from error


def _check_sources(pipeline: Pipeline, there: set[str], where: str) -> None:
    for source in pipeline.sources:
        if not isinstance(source, TopicSource):
            continue
        for topic in source.topics:
            if topic not in there:
                raise PartFailedError(
                    Part("source", source.name, source.line),
                    f"there is no topic {topic!r} at {where}; {nearest(topic, there, noun='there are')} "
                    f"(`millstream topic create {topic}` creates it)",
                )


def written_topics(pipeline: Pipeline) -> Iterable[str]:
    yield from (sink.topic for sink in pipeline.sinks if isinstance(sink, TopicSink))
    yield pipeline.dead_letters.topic


def _create_missing(cluster: Cluster, pipeline: Pipeline, there: set[str]) -> Iterable[str]:
    for topic in dict.fromkeys(written_topics(pipeline)):
        if topic in there:
            continue
        try:
            cluster.create_topic(topic, -1, -1, {})
        except RefusedError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        yield topic


DEFAULT_MASTER = "local[*]"

# A value that cannot be cast is null, or a dead letter, and does not end the pipeline.
ENGINE_SETTINGS = {**STREAM_SETTINGS, "spark.sql.ansi.enabled": "false"}


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of a run."""

    master: str | None = None
    remote: str | None = None
    checkpoint_dir: str | None = None
    once: bool = False
    """Process the available records and end, whatever the trigger of the file."""
    json: bool = False
    metrics_port: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    archive_classes: bool = True
    """Keep an archive of Spark's classes in the user's cache, for faster starts."""
    short_lived: bool = False
    """For a run of a minute or two: Spark's JVM is tuned to start fast."""
    grace_s: float = 120.0
    """How long a batch may continue after a request to stop."""


def run_pipeline(
    pipeline: Pipeline,
    options: RunOptions | None = None,
    *,
    session: "SparkSession | None" = None,
    stop: StopSignal | None = None,
    view: LiveView | None = None,
    listener: Callable[[QueryProgress], None] | None = None,
) -> RunResult:
    """Runs until all is processed, or a stop is requested. Raises PipelineFailedError with a text for the user.

    session   an open one to run in, which is left open; otherwise one is started, and ended with the run
    stop      requests this run to stop; so do Ctrl-C, SIGTERM and `pipeline stop`
    listener  gets the progress of each query after every batch
    """
    return _Run(pipeline, options or RunOptions(), session, stop or StopSignal(), view, listener).run()


class _Run:
    def __init__(
        self,
        pipeline: Pipeline,
        options: RunOptions,
        session: "SparkSession | None",
        stop: StopSignal,
        view: LiveView | None,
        listener: Callable[[QueryProgress], None] | None,
    ) -> None:
        self._pipeline = pipeline
        self._options = options
        self._session = session
        self._stop = stop
        self._listener = listener
        self._out = threading.Lock()
        self._view = view or LiveView(pipeline.name)
        self._board = PipelineMetrics(pipeline.name)
        self._letters = DeadLetterWatch(pipeline)
        self._reported_letters: Mapping[str, int] = {}
        self._publisher: StatusPublisher | None = None
        self._lineage: LineageEvents | None = None
        self._graph = to_document(graph_of(pipeline))

    def run(self) -> RunResult:
        details = {"master": self._options.remote or self._options.master or DEFAULT_MASTER}
        with ExitStack() as stack:
            running = stack.enter_context(
                Running(self._pipeline.name, self._pipeline.file, self._pipeline.bootstrap, **details)
            )
            stack.enter_context(_signals_stop(self._stop))
            if not self._options.json:
                stack.enter_context(self._view)
            self._serve_metrics(running, stack)
            try:
                result = self._run_queries(running, stack)
            except BaseException as error:
                running.update(phase=Phase.FAILED, error=str(error) or type(error).__name__)
                self._publish(running)
                self._send_lineage("FAIL", str(error) or type(error).__name__)
                raise
            self._send_lineage("ABORT" if result is RunResult.STOPPED else "COMPLETE")
            running.update(phase=Phase.FINISHED)
            self._publish(running)
            return result

    def _run_queries(self, running: Running, stack: ExitStack) -> RunResult:
        if self._pipeline.is_realtime and self._options.once:
            raise PipelineFailedError("--once is not possible with latency: realtime; remove one of the two")
        # The JVM takes seconds to start; meanwhile topics are checked and PySpark is imported.
        starting = None if self._session is not None else self._start_spark()
        if self._pipeline.is_realtime:
            self._say("note", text=realtime.NOTE)
        prepared = prepare_topics(self._pipeline)
        self._letters.start()
        stack.callback(self._letters.close)
        self._publisher = StatusPublisher(
            self._pipeline.bootstrap,
            self._pipeline.connection,
            self._pipeline.name,
            lambda text: self._say("note", text=text),
        )
        stack.callback(self._publisher.close)
        for topic in prepared.created:
            self._say("created", topic=topic)
        session = self._session if starting is None else self._await(starting)
        if session is None:  # stopped before Spark was ready
            return RunResult.STOPPED
        if starting is not None:
            stack.callback(_end_session, session)
        running.update(spark_ui=_ui_of(session))
        supervisor = self._start_queries(session, running)
        running.update(phase=Phase.RUNNING)
        self._publish(running)
        self._say("running")
        try:
            ending = supervisor.watch()
        finally:
            supervisor.abandon()
        self._letters.close()
        self._report_dead_letters()
        self._say("stopped" if ending is RunResult.STOPPED else "finished")
        return ending

    def _start_spark(self) -> "Future[SparkSession]":
        options, pipeline = self._options, self._pipeline
        settings = {**ENGINE_SETTINGS, **pipeline.spark, **options.settings}
        short = (
            options.short_lived
            or options.once
            or all((sink.trigger or pipeline.trigger).kind is TriggerKind.AVAILABLE_NOW for sink in pipeline.sinks)
        )
        log_file = log_file_of(pipeline.name)
        log_file.unlink(missing_ok=True)
        return start_in_background(
            f"millstream {pipeline.name}",
            master=options.master or DEFAULT_MASTER,
            remote=options.remote,
            settings=settings,
            lifetime="short" if short else "long",
            checkpoints=checkpoint_location(pipeline, "any", options.checkpoint_dir),
            log_file=log_file,
            archive_classes=options.archive_classes,
        )

    def _await(self, starting: "Future[SparkSession]") -> "SparkSession | None":
        while not starting.done():
            if self._stop.is_requested:
                return None
            time.sleep(0.05)
        try:
            return starting.result()
        except SparkStartError as error:
            raise PipelineFailedError(str(error)) from error

    def _start_queries(self, session: "SparkSession", running: Running) -> Supervisor:
        from millstream.pipeline.engine.queries import build, start

        remote = self._options.remote is not None or is_remote(session)
        show = None if remote else self._show_rows
        settings = {**ENGINE_SETTINGS, **self._pipeline.spark, **self._options.settings}

        def built_now(plan: "PlannedQuery") -> "BuiltQuery":
            return build(own_session(session, settings), self._pipeline, plan, show=show)

        def started_now(query: "BuiltQuery") -> "StartedQuery":
            return start(self._pipeline, query, checkpoint_dir=self._options.checkpoint_dir)

        def rebuilt_now(plan: "PlannedQuery") -> "StartedQuery":
            return started_now(built_now(plan))

        # All queries are built before the first one starts, so that a mistake in the last sink starts none.
        built, division = self._build(built_now, can_share=not remote)
        self._begin_lineage(built, knows_plans=not remote)
        if division is not None:
            division.apply()
            for text in division.notes:
                self._say("note", text=text)
        supervisor = Supervisor(
            stop=self._stop,
            stop_requested=lambda: running.stop_requested,
            report=lambda progress, report: self._report(running, progress, report),
            grace_s=self._options.grace_s,
            tick=lambda: self._tick(running),
        )
        for each in built:
            again = partial(started_now, each)
            try:
                supervisor.add(_watched(self._pipeline, again(), again, partial(rebuilt_now, each.plan)))
            except BaseException:
                supervisor.abandon()
                raise
        return supervisor

    def _build(
        self, built_now: "Callable[[PlannedQuery], BuiltQuery]", *, can_share: bool
    ) -> "tuple[list[BuiltQuery], Division | None]":
        """Builds the queries. Outputs that can share a query do, as far as their checkpoints allow."""
        from millstream.pipeline.engine.planned import planned_queries
        from millstream.pipeline.engine.queries import StatefulSqlError
        from millstream.pipeline.engine.shared_checkpoints import Checkpoints
        from millstream.pipeline.engine.sharing import counted, shared

        plans = planned_queries(self._pipeline, available_now=self._options.once)
        local = is_local_path(checkpoint_location(self._pipeline, "any", self._options.checkpoint_dir))
        with_state: set[str] = set()
        while True:
            division = None
            wanted = plans
            if local:
                wanted = shared(self._pipeline, plans, with_state) if can_share else plans
                division = Checkpoints(self._pipeline, self._options.checkpoint_dir, with_state).divide(wanted)
                wanted = division.plans
            try:
                return [built_now(plan) for plan in counted(self._pipeline, wanted)], division
            except StatefulSqlError as error:
                with_state.add(error.step)

    def _report(self, running: Running, progress: QueryProgress, report: Report | None) -> None:
        running.report(progress)
        self._publish(running)
        self._board.show(progress)
        if self._options.json:
            self._print_json(_document(self._pipeline.name, progress, report))
        else:
            self._view.show(progress)
        if self._listener is not None:
            self._listener(progress)

    def _begin_lineage(self, built: "list[BuiltQuery]", *, knows_plans: bool) -> None:
        from millstream.pipeline.engine.column_lineage import columns_of

        lineage = self._pipeline.lineage
        if lineage is None:
            return
        columns = columns_of(self._pipeline, built) if knows_plans else Columns()
        self._lineage = LineageEvents(self._pipeline, lineage, columns, is_batch=self._options.once)
        self._send_lineage("START")

    def _send_lineage(self, kind: str, error: str | None = None) -> None:
        if self._lineage is None or self._pipeline.lineage is None:
            return
        sender = LineageSender(self._pipeline.lineage)
        sender.send(self._lineage.event(kind, error))
        for problem in sender.problems:
            self._say("note", text=problem)

    def _publish(self, running: Running) -> None:
        if self._publisher is not None:
            self._publisher.show({**running.document(), "graph": self._graph})

    def _tick(self, running: Running) -> None:
        self._report_dead_letters()
        if self._stop.is_requested and running.state.phase is Phase.RUNNING:
            running.update(phase=Phase.STOPPING)
            self._say("stopping after the batch; repeat to stop at once")

    def _report_dead_letters(self) -> None:
        counts = self._letters.by_step
        self._board.show_dead_letters(counts)
        self._view.show_dead_letters(counts, self._letters.last_reason)
        if counts != self._reported_letters:
            self._reported_letters = counts
            if self._options.json:
                reason = self._letters.last_reason
                self._say("dead_letters", by_step=counts, total=sum(counts.values()), last_reason=reason)

    def _show_rows(self, sink: str, batch: int, columns: list[str], rows: list[list[str]], total: int) -> None:
        if self._options.json:
            records = [dict(zip(columns, row, strict=True)) for row in rows]
            self._say("rows", sink=sink, batch=batch, rows=records, total=total)
        else:
            self._view.show_rows(sink, batch, columns, rows, total)

    def _say(self, event: str, **details: Any) -> None:
        if self._options.json:
            self._print_json({"event": event, "pipeline": self._pipeline.name, **details})
        else:
            if details:
                self._view.say(f"{event} {' '.join(str(value) for value in details.values())}")
            else:
                self._view.note(event)

    def _print_json(self, document: Mapping[str, Any]) -> None:
        with self._out:
            sys.stdout.write(json.dumps(document, default=str) + "\n")
            sys.stdout.flush()

    def _serve_metrics(self, running: Running, stack: ExitStack) -> None:
        if self._options.metrics_port is None:
            return
        try:
            server = MetricsServer(self._board.text, self._options.metrics_port)
        except OSError as error:
            port = self._options.metrics_port
            raise PipelineFailedError(f"--metrics-port {port}: {error.strerror}; 0 picks a free port") from error
        stack.callback(server.close)
        running.update(metrics=server.address)
        self._say("metrics", address=server.address)


def own_session(session: "SparkSession", settings: Mapping[str, str]) -> "SparkSession":
    """A session for one query with its own names; over Connect it starts without our settings."""
    own = session.newSession()
    for name, value in settings.items():
        if name.startswith("spark.sql.") and own.conf.isModifiable(name):
            own.conf.set(name, value)
    return own


def _watched(
    pipeline: Pipeline,
    started: "StartedQuery",
    start_again: "Callable[[], StartedQuery]",
    build_again: "Callable[[], StartedQuery]",
) -> Watched:
    sources = started.frames.streams
    group = started.frames.group_of(sources[0]) if sources else None
    actions = {
        (kind_of(part), part.name, rule.name): str(rule.action)
        for part in pipeline.parts_with_expectations
        if (kind_of(part), part.name) in started.plan.counts_of
        for rule in part.expect
    }
    tracker = ProgressTracker(started.plan, sources, group, started.fan_out, actions)
    return Watched(started, tracker, start_again, build_again)


def _document(pipeline: str, progress: QueryProgress, report: Report | None) -> dict[str, Any]:
    document = {"event": "progress", "pipeline": pipeline, **asdict(progress)}
    if report is not None:
        document["timestamp"] = report.get("timestamp")
        document["duration_ms"] = report.get("durationMs")
    return document


def _ui_of(session: "SparkSession") -> str | None:
    return None if is_remote(session) else session.sparkContext.uiWebUrl


def _end_session(session: "SparkSession") -> None:
    """Ends the session; errors are ignored, so that they do not hide the failure of a run."""
    try:
        session.stop()
    except Exception as error:
        if type(error).__module__.split(".")[0] not in ("py4j", "pyspark"):
            raise


@contextmanager
def _signals_stop(stop: StopSignal) -> Iterator[None]:
    """Ctrl-C and SIGTERM request a stop; only the main thread can set handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda *_: stop.request())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def log_file_of(pipeline: str) -> Path:
    """The file with Spark's warnings of a run."""
    return state_directory(pipeline) / "spark.log"
