"""What `millstream table serve` starts: the Spark session, the server, metrics, and the lines that it prints."""

import json
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from types import FrameType

from millstream.admin.tables import FAILED, TableStatus
from millstream.cli.terminal import complain, note
from millstream.lake.options import parse_options, parse_size
from millstream.pipeline.engine.progress import MetricsServer
from millstream.tables.conversion import Registry
from millstream.tables.copier import CopyOptions, in_spark
from millstream.tables.server import ServeOptions, TableServer
from millstream.tables.settings import Warehouse


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeArguments:
    """The arguments of the command."""

    warehouse: str
    bootstrap: str
    dead_letters: str
    options: Mapping[str, str] = field(default_factory=dict)
    namespace: str = "default"
    client_settings: Mapping[str, str] = field(default_factory=dict)
    registry: str | None = None
    registry_user: str | None = None
    interval_s: float = 10.0
    discover_s: float = 10.0
    vacuum_every_s: float = 3600.0
    retain: timedelta = timedelta(days=7)
    max_records: int = 1_000_000
    compact_after: int = 20
    target_size: str = "128MB"
    parallel: int = 4
    skip_lost: bool = False
    once: bool = False
    metrics_port: int | None = None
    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)
    json: bool = False

    def server_options(self) -> ServeOptions:
        """Checks the options of stores and catalogs. LakeOptionError."""
        probe = dict(self.options) | {"path": self.warehouse}
        parse_options(probe)
        registry: list[tuple[str, str]] = []
        if self.registry:
            registry.append(("registry.url", self.registry))
            if self.registry_user:
                user, _, password = self.registry_user.partition(":")
                registry += [("registry.user", user), ("registry.password", password)]
        return ServeOptions(
            copy=CopyOptions(
                warehouse=Warehouse(self.warehouse, dict(self.options), self.namespace),
                bootstrap=self.bootstrap,
                settings=dict(self.client_settings),
                registry=Registry(tuple(registry)),
                max_records=self.max_records,
                compact_after=self.compact_after,
                target_size=parse_size(self.target_size, "--target-size"),
                vacuum_every_s=self.vacuum_every_s,
                retain=self.retain,
                skip_lost=self.skip_lost,
                dead_letter_topic=self.dead_letters,
            ),
            interval_s=self.interval_s,
            discover_s=self.discover_s,
            parallel=self.parallel,
            once=self.once,
        )


def run_server(arguments: ServeArguments) -> bool:
    """Runs until a signal, or with --once until all is copied. Whether no table has failed."""
    from millstream.client.connection import Connection
    from millstream.spark.session import start_session

    options = arguments.server_options()
    Connection(arguments.bootstrap, dict(arguments.client_settings)).probe()
    note("starting Spark")
    settings = {"spark.scheduler.mode": "FAIR", **arguments.conf}
    spark = start_session(
        "millstream table serve",
        master=arguments.master,
        settings=settings,
        lifetime="short" if arguments.once else "long",
    )
    try:
        server = TableServer(options, in_spark(spark), _shown(as_json=arguments.json))
        metrics = None
        if arguments.metrics_port is not None:
            metrics = MetricsServer(server.reports.metrics, arguments.metrics_port)
            note(f"metrics: {metrics.address}")
        try:
            with _ended_by_signals(server.end):
                note("serving tables")
                return server.run()
        finally:
            if metrics is not None:
                metrics.close()
    finally:
        spark.stop()


def _shown(*, as_json: bool) -> Callable[[TableStatus], None]:
    def show(status: TableStatus) -> None:
        if as_json:
            print(json.dumps(asdict(status)), flush=True)
        elif status.state == FAILED:
            complain(f"{status.topic}: {status.error}")
        else:
            lag = "" if status.lag_seconds is None else f", lag {status.lag_seconds:.1f} s"
            print(f"{status.topic}: {status.state}, {status.rows} rows{lag}", flush=True)

    return show


@contextmanager
def _ended_by_signals(end: Callable[[], None]) -> Iterator[None]:
    """The first signal ends after the running batches, the second at once."""

    def ended(number: int, _frame: FrameType | None) -> None:
        note("stopping after the running batches; once more stops at once")
        signal.signal(number, signal.SIG_DFL)
        end()

    before = {number: signal.signal(number, ended) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
