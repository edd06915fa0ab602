"""`millstream pipeline skew`: counts the hot keys of a topic, and the effect of spreading them."""

import base64
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli import exit_codes
from millstream.cli.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    ClientSettings,
    Json,
    TopicArgument,
    connection_settings,
)
from millstream.cli.pipeline.common import needs, short_session
from millstream.cli.terminal import CommandFailedError, print_json, print_table

if TYPE_CHECKING:
    from millstream.pipeline.skew import HotKey, SkewReport


def skew(
    topic: TopicArgument,
    top: Annotated[int, typer.Option("--top", "-n", metavar="N", min=1, help="Number of keys.")] = 10,
    by: Annotated[str, typer.Option("--by", metavar="records|bytes", help="Measure of the shares.")] = "bytes",
    spread: Annotated[
        list[int] | None,
        typer.Option(
            "--spread", "-s", metavar="N", min=2, help="Number of partitions to spread hot keys over. Repeatable."
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Time or age of the first records: 2026-01-31T12:00, or 2h."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE.svg", help="SVG file for a chart of the partitions."),
    ] = None,
    master: Annotated[str, typer.Option("--master", metavar="URL", help="Spark master.")] = "local[*]",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
    settings: ClientSettings = None,
) -> None:
    """Show the hot keys of a topic, their shares of the topic and of their partition, and the effect of spreading them.

    Spark reads and counts every record of the topic. `millstream topic hot` estimates the hot keys of the present from
    samples. docs/hot-keys.md describes how to spread keys, and the cost.

    \b
    Examples:
      millstream pipeline skew orders
      millstream pipeline skew orders --by records --spread 3 --since 2h
      millstream pipeline skew orders -o skew.svg --json
    """
    with needs():
        import pyspark  # noqa: F401  # a missing package is reported first

        from millstream.pipeline.skew import SPREADS, Measure, count, report
    if by not in list(Measure):
        raise CommandFailedError(f"--by {by}: write records or bytes", exit_codes.USAGE)
    if output is not None and output.suffix != ".svg":
        raise CommandFailedError(f"{output}: the output is SVG; use a name that ends in .svg", exit_codes.USAGE)
    since_ms = _since_ms(since) if since else None
    client = connection_settings(settings)
    _check_topic(bootstrap, client, topic)
    with short_session(f"skew of {topic}", master) as session:
        counted = count(session, topic, bootstrap, client, top=top, since_ms=since_ms)
    if not counted.partitions:
        raise CommandFailedError(f"{topic!r} has no records" + (" since then" if since else ""), exit_codes.NOT_FOUND)
    found = report(counted, Measure(by), spread or SPREADS)
    if output is not None:
        output.write_text(_picture(found), encoding="utf-8")
    if json:
        print_json(_document(found))
    else:
        _show(found)


def _since_ms(text: str) -> int:
    import time

    from millstream.pipeline.document import parse_duration, parse_timestamp_ms

    try:
        return int(time.time() * 1000) - parse_duration(text).milliseconds
    except ValueError:
        pass
    try:
        return parse_timestamp_ms(text)
    except ValueError as error:
        raise CommandFailedError(
            f"--since {text}: write a time such as 2026-01-31T12:00, or an age such as 2h", exit_codes.USAGE
        ) from error


def _check_topic(bootstrap: str, settings: dict[str, str], topic: str) -> None:
    """Reports a wrong topic or address before Spark is started, which takes seconds."""
    from millstream.pipeline.problems import nearest
    from millstream.raw_client import Cluster, UnreachableError, WireError

    try:
        with Cluster(bootstrap, settings) as cluster:
            known = cluster.topics()
    except UnreachableError as error:
        raise CommandFailedError(str(error), exit_codes.NO_BROKER) from error
    except WireError as error:
        raise CommandFailedError(str(error)) from error
    if topic not in known:
        names = [name for name, info in known.items() if not info.is_internal]
        raise CommandFailedError(
            f"there is no topic {topic!r}; {nearest(topic, names, noun='there are')}", exit_codes.NOT_FOUND
        )


def _document(found: "SkewReport") -> dict[str, Any]:
    return {
        "topic": found.topic,
        "measure": str(found.measure),
        "records": found.total.records,
        "bytes": found.total.bytes,
        "distinct_keys": found.distinct_keys,
        "largest_share": found.largest,
        "even_share": found.fair,
        "partitions": [{"partition": number, "share": share} for number, share in found.shares.items()],
        "keys": [
            {
                **_key_document(key),
                "share": key.share,
                "home": key.home,
                "share_of_home": key.share_of_home,
                "records": key.records,
                "bytes": key.bytes,
                "hot": key.is_hot,
            }
            for key in found.keys
        ],
        "spreads": [
            {"over": each.over, "largest_share": each.largest, "shares": list(each.shares.values())}
            for each in found.spreads
        ],
        "advice": found.advice,
    }


def _key_document(key: "HotKey") -> dict[str, Any]:
    if key.key is None:
        return {"key": None}
    try:
        return {"key": key.key.decode()}
    except UnicodeDecodeError:
        return {"key_base64": base64.b64encode(key.key).decode()}


def _key_text(key: "HotKey") -> str:
    document = _key_document(key)
    if "key_base64" in document:
        return f"base64:{document['key_base64']}"
    return "(no key)" if document["key"] is None else str(document["key"])


def _show(found: "SkewReport") -> None:
    from millstream.pipeline.skew import bar_text

    print(
        f"{found.topic}  {found.total.records:,} records  {found.total.bytes:,} bytes  {found.distinct_keys:,} keys  "
        f"{len(found.shares)} partition{'s' if len(found.shares) != 1 else ''}; shares are of {found.measure}"
    )
    best = _best(found)
    rows = []
    for number, share in found.shares.items():
        row = [number, f"{share:.1%}", bar_text(share, found.largest)]
        rows.append([*row, f"{best.shares[number]:.1%}", bar_text(best.shares[number], found.largest)] if best else row)
    spread = ("", f"over {best.over}", "") if best else ("",)
    print_table(("partition", "now", *spread), rows)
    print_table(
        ("key", "of topic", "partition", "of it", "records", "bytes", "hot"),
        [
            (
                _key_text(key),
                f"{key.share:.1%}",
                key.home,
                f"{key.share_of_home:.1%}",
                f"{key.records:,}",
                f"{key.bytes:,}",
                key.is_hot,
            )
            for key in found.keys
        ],
    )
    if found.spreads:
        print_table(
            ("hot keys spread over", "largest partition", "times the even share"),
            [
                ("1 (now)", f"{found.largest:.1%}", f"{found.largest / found.fair:.2f}"),
                *((each.over, f"{each.largest:.1%}", f"{each.largest / found.fair:.2f}") for each in found.spreads),
            ],
        )
    print(found.advice)


def _best(found: "SkewReport") -> Any:
    if not found.spreads or not any(key.is_hot for key in found.keys):
        return None
    return min(found.spreads, key=lambda each: (round(each.largest, 2), each.over))


def _picture(found: "SkewReport") -> str:
    from millstream.pipeline.skew import Series, bars_svg

    best = _best(found)
    series = [Series("now", list(found.shares.values()))]
    if best is not None:
        series.append(Series(f"hot keys spread over {best.over}", list(best.shares.values())))
    names = [f"partition {number}" for number in found.shares]
    return bars_svg(f"{found.topic}: share of {found.measure} by partition", names, series, found.fair, "even")
