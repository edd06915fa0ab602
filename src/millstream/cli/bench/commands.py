"""`millstream bench`: measures throughput and latency of a broker."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from millstream.cli import exit_codes
from millstream.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_SECONDS,
    Bootstrap,
    ClientSettings,
    Json,
    Timeout,
    open_client,
)
from millstream.cli.terminal import CommandFailedError, note, print_json, print_table, progress

if TYPE_CHECKING:
    from rich.progress import Progress

    from millstream.cli.bench.load import Measured

LOADS = ("produce", "consume", "latency")


def bench(
    records: Annotated[
        int, typer.Option("--records", "-n", metavar="N", help="Number of records to produce and consume.")
    ] = 200_000,
    size: Annotated[int, typer.Option("--size", "-s", metavar="BYTES", help="Size of each record.")] = 1024,
    partitions: Annotated[int, typer.Option("--partitions", "-p", metavar="N", help="Partitions of the topic.")] = 1,
    acks: Annotated[
        str,
        typer.Option(
            "--acks", metavar="0|1|all", help="Required acknowledgements: none, leader, or all in-sync replicas."
        ),
    ] = "all",
    compression: Annotated[
        str, typer.Option("--compression", "-z", metavar="CODEC", help="Compression: none, gzip, snappy, lz4 or zstd.")
    ] = "none",
    rate: Annotated[
        int, typer.Option("--rate", metavar="N", help="Records per second in the latency measurement.")
    ] = 1000,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", help="Duration of the latency measurement.")
    ] = 5.0,
    only: Annotated[
        str | None,
        typer.Option(
            "--only",
            metavar="LOADS",
            help="Measurements: produce, consume, latency, separated by commas. [default: all]",
        ),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option("--topic", "-t", metavar="TOPIC", help="Empty topic to use. [default: a temporary topic]"),
    ] = None,
    save: Annotated[
        str | None,
        typer.Option("--save", metavar="FILE", help="Write the result to a file, for `millstream capacity`."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Measure the throughput of producing and consuming, and end-to-end latency. Works with any broker.

    \b
    Examples:
      millstream bench
      millstream bench --records 1000000 --size 100 --acks 1 --compression lz4
      millstream bench --only latency --rate 5000 --seconds 20 --json
      millstream bench --save bench.json
    """
    loads = LOADS if only is None else tuple(part.strip() for part in only.split(","))
    for load in loads:
        if load not in LOADS:
            raise CommandFailedError(f"--only {only}: choose from {', '.join(LOADS)}", exit_codes.USAGE)
    if records < 1 or size < 8 or partitions < 1 or rate < 1 or seconds <= 0:
        raise CommandFailedError(
            "--records, --partitions, --rate and --seconds must be positive, and --size at least 8", exit_codes.USAGE
        )
    from uuid import uuid4

    with open_client(bootstrap, timeout, settings) as client:
        name = topic or f"millstream-bench-{uuid4().hex[:8]}"
        created = client.create_topic(name, partitions, exist_ok=topic is not None)
        try:
            with progress() as display:
                run = _Run(client.connection, name, client.topics.partitions(name), display)
                if "produce" in loads or "consume" in loads:
                    run.produce(records, size, acks, compression)
                if "consume" in loads:
                    run.consume(records)
                if "latency" in loads:
                    run.latency(size, acks, rate, seconds)
        finally:
            if created and topic is None:
                client.delete_topic(name, missing_ok=True)
    results = [result for result in run.results if result.load in loads]
    document = {"bootstrap": bootstrap, "size": size, "acks": acks, "loads": [one.document() for one in results]}
    if save is not None:
        _save(save, document)
    if json:
        print_json(document)
    else:
        _show(results, rate)


def _save(path: str, document: object) -> None:
    import json as json_format

    try:
        with open(path, "w", encoding="utf-8") as file:
            json_format.dump(document, file, indent=2)
            file.write("\n")
    except OSError as error:
        raise CommandFailedError(f"--save {path}: the file cannot be written: {error.strerror}") from None


class _Run:
    """Runs the measurements in turn, each with a progress bar."""

    def __init__(self, connection: object, topic: str, partitions: list[int], display: "Progress | None") -> None:
        from millstream.client.connection import Connection

        assert isinstance(connection, Connection)
        self._connection = connection
        self._topic = topic
        self._partitions = partitions
        self._display = display
        self.results: list[Measured] = []

    def produce(self, records: int, size: int, acks: str, compression: str) -> None:
        from millstream.cli.bench.load import produce_load

        self.results.append(
            produce_load(
                self._connection,
                self._topic,
                records=records,
                size=size,
                acks=acks,
                compression=compression,
                progress=self._bar("produce", records),
            )
        )

    def consume(self, records: int) -> None:
        from millstream.cli.bench.load import consume_load

        self.results.append(
            consume_load(
                self._connection,
                self._topic,
                partitions=self._partitions,
                records=records,
                progress=self._bar("consume", records),
            )
        )

    def latency(self, size: int, acks: str, rate: int, seconds: float) -> None:
        from millstream.cli.bench.load import latency_load

        self.results.append(
            latency_load(
                self._connection,
                self._topic,
                partitions=self._partitions,
                size=size,
                acks=acks,
                rate=rate,
                seconds=seconds,
                progress=self._bar("latency", max(1, int(rate * seconds))),
            )
        )

    def _bar(self, name: str, total: int) -> "Callable[[int], None]":
        import time

        if self._display is None:
            return lambda done: None
        display = self._display
        task = display.add_task(name, total=total, info="")
        started = time.perf_counter()

        def update(done: int) -> None:
            speed = done / max(1e-9, time.perf_counter() - started)
            display.update(task, completed=done, info=f"{speed:,.0f}/s")

        return update


def _show(results: "list[Measured]", rate: int) -> None:
    names = ("p50", "p90", "p99", "p99.9", "max")
    rows = []
    for result in results:
        latencies = result.percentiles()
        rows.append(
            (
                result.load,
                f"{result.records:,}",
                f"{result.records_per_second:,.0f}",
                f"{result.megabytes_per_second:,.1f}",
                *(f"{latencies[name]:.2f}" if latencies else "" for name in names),
            )
        )
    print_table(("load", "records", "records/s", "MB/s", *names), rows)
    note(
        "p50 to max in ms. produce: from send to acknowledgement, with full queues;"
        f" latency: from send to receipt by a consumer, at {rate:,} records/s."
    )
