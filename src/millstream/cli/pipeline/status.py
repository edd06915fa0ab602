"""`millstream pipeline status` and `stop`: pipelines of this machine."""

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli import exit_codes
from millstream.cli.options import Json
from millstream.cli.pipeline.common import inspected, needs, resolved
from millstream.cli.terminal import CommandFailedError, note, print_json, print_table

if TYPE_CHECKING:
    from millstream.pipeline.state import PipelineState, QueryProgress
    from millstream.raw_client import Cluster

_BROKER_TIMEOUT_SECONDS = 5.0
_ENDED = ("finished", "failed", "gone")

NameOrFile = Annotated[
    str | None, typer.Argument(metavar="[FILE|NAME]", help="File or name of the pipeline.", show_default=False)
]


def status(
    pipeline: NameOrFile = None,
    watch: Annotated[
        float | None, typer.Option("--watch", "-w", metavar="SECONDS", help="Interval at which the output is repeated.")
    ] = None,
    json: Json = False,
) -> None:
    """Show phase, rows, lag, batch, watermark and dead letters of pipelines. Without a name: all of this machine.

    The lag comes from the broker (pipelines commit their progress to consumer groups), so it is also right for
    pipelines that have ended. The exit code is 8 if the named pipeline has failed or its process is gone.

    \b
    Examples:
      millstream pipeline status
      millstream pipeline status pipeline.yaml --watch 2
      millstream pipeline status shop --json | jq '.[0].queries[].lag'
    """
    if watch is not None and watch <= 0:
        raise CommandFailedError("--watch must be positive", exit_codes.USAGE)
    name = _name(pipeline) if pipeline is not None else None
    while True:
        states = _states(name)
        documents = [_with_lag(state) for state in states]
        if json:
            print_json(documents)
        elif name is None:
            _show_all(documents)
        else:
            _show_one(documents[0])
        if watch is None:
            break
        time.sleep(watch)
    if name is not None and documents[0]["phase"] in ("failed", "gone"):
        raise typer.Exit(exit_codes.UNWELL)


def stop(
    pipeline: Annotated[str, typer.Argument(metavar="FILE|NAME", help="File or name of the pipeline.")],
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="Timeout for the end of the batch.")
    ] = 120.0,
    json: Json = False,
) -> None:
    """Stop a running pipeline after its batch, and wait until it has stopped.

    \b
    Examples:
      millstream pipeline stop shop
      millstream pipeline stop pipeline.yaml --timeout 600
    """
    name = _name(pipeline)
    with needs():
        from millstream.pipeline.state import is_locked, read_state, request_stop, wait_until_ended
    if not is_locked(name):
        known = read_state(name)
        raise CommandFailedError(
            f"pipeline {name!r} does not run on this machine"
            + (f"; it {_ended_text(known)}" if known else "; it never has"),
            exit_codes.NOT_FOUND,
        )
    request_stop(name)
    note(f"{name}: stopping after the batch …")
    if not wait_until_ended(name, timeout):
        raise CommandFailedError(
            f"pipeline {name!r} has not stopped within {timeout:g} s: it stops after its batch, --timeout waits longer",
            exit_codes.TIMED_OUT,
        )
    ended = read_state(name)
    if json:
        print_json({"pipeline": name, "phase": str(ended.run.phase) if ended else None})
    else:
        print(f"{name}: stopped")


def _ended_text(state: "PipelineState") -> str:
    if state.run.phase == "gone":
        return "ended without a status (was the process killed?)"
    when = _ago(state.run.ended_ms) if state.run.ended_ms else "some time ago"
    return f"{state.run.phase} {when}"


def _name(text: str) -> str:
    """The name of a pipeline, given by name or file."""
    path = Path(text)
    if path.suffix in (".yaml", ".yml") or path.is_dir():
        found = inspected(path)
        if found.pipeline is None:
            raise CommandFailedError(
                f"{resolved(path)} is not a valid pipeline; `millstream pipeline validate` lists its errors"
            )
        return found.pipeline.name
    return text


def _states(name: str | None) -> list["PipelineState"]:
    with needs():
        from millstream.pipeline.problems import nearest
        from millstream.pipeline.state import StateError, known_pipelines, read_state
    try:
        found = [state for each in ([name] if name else known_pipelines()) if (state := read_state(each)) is not None]
        if name is not None and not found:
            raise CommandFailedError(
                f"pipeline {name!r} never ran on this machine; {nearest(name, known_pipelines(), noun='there are')}",
                exit_codes.NOT_FOUND,
            )
    except StateError as error:
        raise CommandFailedError(str(error)) from error
    return found


def _with_lag(state: "PipelineState") -> dict[str, Any]:
    run = asdict(state.run)
    lags = _lags(state)
    queries = [{**asdict(query), "lag": lags.get(query.query)} for query in state.queries]
    return {**run, "phase": str(state.run.phase), "queries": queries}


def _lags(state: "PipelineState") -> dict[str, int | None]:
    """The lag of each query: from the broker, or as the pipeline last reported it."""
    with_groups = {query.query: query for query in state.queries if query.group and query.topics}
    reported = {query.query: _reported_lag(query) for query in state.queries}
    if not with_groups:
        return reported
    from millstream.raw_client import Cluster, WireError

    try:
        with Cluster(state.run.bootstrap, _connection(state.run.file), timeout_s=_BROKER_TIMEOUT_SECONDS) as cluster:
            for name, query in with_groups.items():
                lag = _group_lag(cluster, query)
                reported[name] = reported[name] if lag is None else lag
    except WireError as error:
        note(f"{state.run.pipeline}: the lag is as last reported by the pipeline; no response from the broker: {error}")
    return reported


def _reported_lag(query: "QueryProgress") -> int | None:
    known = [source.lag for source in query.sources if source.lag is not None]
    return sum(known) if known else None


def _connection(file: str) -> Mapping[str, str]:
    """The connection settings of the pipeline file. State files have no passwords."""
    from millstream.pipeline.definition import load
    from millstream.pipeline.problems import InvalidPipelineError

    try:
        return load(file).connection
    except (OSError, InvalidPipelineError):
        return {}


def _group_lag(cluster: "Cluster", query: "QueryProgress") -> int | None:
    from millstream.raw_client import EARLIEST, LATEST, TopicPartition

    topics = cluster.topics(query.topics)
    partitions = [
        TopicPartition(topic.name, partition.index) for topic in topics.values() for partition in topic.partitions
    ]
    committed = cluster.committed_offsets(query.group or "", partitions) if partitions else {}
    if not any(offset >= 0 for offset in committed.values()):
        return None
    ends = cluster.offsets(dict.fromkeys(partitions, LATEST))
    begins = cluster.offsets(dict.fromkeys(partitions, EARLIEST))
    return sum(
        max(0, ends[partition].offset - max(committed.get(partition, -1), begins[partition].offset))
        for partition in partitions
    )


def _show_all(documents: list[dict[str, Any]]) -> None:
    if not documents:
        print("no pipeline has run on this machine yet")
        return
    print_table(
        ("pipeline", "phase", "since", "queries", "rows in", "rows/s", "lag", "file"),
        [
            (
                document["pipeline"],
                document["phase"],
                _ago(document["ended_ms"] or document["started_ms"]),
                len(document["queries"]),
                f"{sum(query['rows_in_total'] for query in document['queries']):,}",
                _rate(sum(query["rows_in_per_second"] for query in document["queries"]), document["phase"]),
                _sum_of(query["lag"] for query in document["queries"]),
                document["file"],
            )
            for document in documents
        ],
    )


def _show_one(document: dict[str, Any]) -> None:
    print(f"{document['pipeline']}  {document['phase']}  {document['file']}")
    if document["phase"] in _ENDED:
        ended = f", ended {_ago(document['ended_ms'])}" if document["ended_ms"] else ""
        print(f"  started {_ago(document['started_ms'])}{ended}")
    else:
        print(f"  process {document['pid']} on {document['host']}, started {_ago(document['started_ms'])}")
    addresses = () if document["phase"] in _ENDED else (("Spark", "spark_ui"), ("metrics", "metrics"))
    for label, key in (("error", "error"), *addresses):
        if document.get(key):
            print(f"  {label}: {document[key]}")
    if not document["queries"]:
        return
    print_table(
        ("sink", "batch", "took", "rows in", "rows/s", "rows out", "lag", "late", "state", "watermark", "dead letters"),
        [
            (
                query["sink"],
                query["batch"] if query["batch"] >= 0 else "",
                f"{query['batch_ms']:,} ms" if query["batch_ms"] is not None else "",
                _number(query["rows_in_total"]),
                "" if query["rows_in_per_second"] is None else _rate(query["rows_in_per_second"], document["phase"]),
                _number(query["rows_out_total"]),
                _number(query["lag"]),
                _number(query["dropped_late_rows"]),
                _number(query["state_rows"]),
                query["watermark"] or "",
                _number(query["dead_letters_total"]),
            )
            for query in _by_output(document["queries"])
        ],
    )
    _show_rules(document)
    for query in document["queries"]:
        if query["error"]:
            print(f"  {query['sink']}: {query['error']}")


def _by_output(queries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line for each output. What a shared query reads is in the line of its first output."""
    rows = []
    for query in queries:
        for index, output in enumerate(query["outputs"]):
            own = {
                **query,
                "sink": output["sink"],
                "rows_out_total": output["rows_total"],
                "dead_letters_total": output["rows_total"] if output["dead_letters"] else None,
            }
            if index:
                own |= {"sink": f"{output['sink']} (same query)", "rows_in_total": None, "rows_in_per_second": None}
                own |= {"lag": None, "state_rows": None, "dropped_late_rows": None, "batch_ms": None, "watermark": None}
            rows.append(own)
        if not query["outputs"]:
            rows.append(query)
    return rows


def _show_rules(document: dict[str, Any]) -> None:
    rules = [rule for query in document["queries"] for rule in query["expectations"]]
    if not rules:
        return
    print_table(
        ("expectation", "of", "action", "rows", "not met", "share"),
        [
            (
                rule["rule"],
                f"sink {rule['part']}" if rule["kind"] == "sink" else rule["part"],
                rule["action"],
                f"{rule['rows_total']:,}",
                f"{rule['violations_total']:,}",
                f"{100 * rule['violations_total'] / rule['rows_total']:.2f} %" if rule["rows_total"] else "",
            )
            for rule in rules
        ],
    )


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _sum_of(values: Any) -> str:
    known = [value for value in values if value is not None]
    return f"{sum(known):,}" if known else ""


def _rate(rate: float, phase: str) -> str:
    return "" if phase in _ENDED else f"{rate:,.0f}"


def _ago(moment_ms: int | None) -> str:
    if moment_ms is None:
        return ""
    seconds = max(0, int(time.time() - moment_ms / 1000))
    for name, size in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {name}s ago"
    return f"{seconds} s ago"
