"""What a pipeline's file says, as the model has it."""

from pathlib import Path

import pytest

from millstream.pipeline.definition import load
from millstream.pipeline.model import (
    BadRecords,
    ConsoleSink,
    Delivery,
    Duration,
    Format,
    Join,
    JoinType,
    Latest,
    OutputMode,
    Pipeline,
    Python,
    Route,
    Sql,
    Stateful,
    TableFormat,
    TableSink,
    TableSource,
    TopicSink,
    TopicSource,
    TriggerKind,
    Window,
    WindowKind,
)
from millstream.pipeline.problems import InvalidPipelineError
from millstream.pipeline.state import checkpoint_location, consumer_group, query_name
from tests.system.pipeline.definitions import PAYMENTS, SINK, SOURCE, documented, look_at, messages, pipeline_text


def pipeline_of(directory: Path, text: str, **environment: str) -> Pipeline:
    found = look_at(directory, text, **environment)
    assert found.pipeline is not None, messages(found)
    return found.pipeline


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """The example of the documentation, which has everything in it."""
    found = documented(tmp_path_factory.mktemp("whole"))
    assert found.pipeline is not None, messages(found)
    assert messages(found) == []
    return found.pipeline


def test_the_documented_file_is_read_in_full(whole: Pipeline) -> None:
    assert (whole.name, whole.bootstrap) == ("shop", "broker:9092")
    assert whole.connection["sasl.password"] == "secret"
    assert "secret" not in repr(whole)
    assert whole.registry is not None and whole.registry.url == "http://localhost:8081"
    assert whole.spark == {"spark.sql.shuffle.partitions": "4"}
    assert whole.trigger.kind is TriggerKind.EVERY and whole.trigger.every == Duration(5000)
    assert whole.checkpoint == "s3://lake/checkpoints"
    assert whole.dead_letters.topic == "shop.dead-letters"


def test_sources_of_the_documented_file(whole: Pipeline) -> None:
    orders, payments, _, shops = whole.sources
    assert isinstance(orders, TopicSource) and isinstance(payments, TopicSource) and isinstance(shops, TableSource)
    assert (orders.topics, orders.format, orders.key_format) == (("orders",), Format.JSON, Format.STRING)
    assert orders.starting.position == "earliest"
    assert orders.watermark is not None
    assert (orders.watermark.column, orders.watermark.delay) == ("at", Duration(120_000))
    assert (orders.max_records_per_trigger, orders.max_bytes_per_trigger) == (500_000, 64 << 20)
    assert orders.headers and orders.options == {"minPartitions": "8"}
    assert orders.bad_records is BadRecords.DEAD_LETTERS
    assert payments.format is Format.AVRO and payments.schema is None
    assert shops.format is TableFormat.CSV and shops.path.endswith("/shops.csv") and Path(shops.path).is_absolute()


def test_steps_of_the_documented_file(whole: Pipeline) -> None:
    steps = {step.name: step for step in whole.steps}
    route, sql, python, window = steps["checked"], steps["in_euro"], steps["scored"], steps["revenue"]
    paid, located, latest, alerts = steps["paid"], steps["located"], steps["customers"], steps["alerts"]
    assert isinstance(route, Route) and route.gives == ("good_orders", "refunds")
    assert isinstance(sql, Sql) and sql.reads == ("unique_orders",) and sql.query_line == sql.line + 2
    assert isinstance(python, Python) and python.arguments == {"threshold": 10}
    assert isinstance(window, Window) and (window.window, window.size) == (WindowKind.TUMBLING, Duration(60_000))
    assert window.time == "at"  # from the watermark of the source, three steps before
    assert [column.expression for column in window.aggregate] == ["count(*)", "sum(euro)"]
    assert isinstance(paid, Join) and paid.within is not None
    assert (paid.within.left_time, paid.within.right_time) == ("at", "paid_at")
    assert paid.within.before == paid.within.after == Duration(600_000)
    assert isinstance(located, Join) and located.within is None and located.type is JoinType.LEFT
    assert isinstance(latest, Latest) and latest.refresh == Duration(60_000)
    assert isinstance(alerts, Stateful) and alerts.arguments == {"limit": 1000}


def test_steps_come_after_what_they_read(whole: Pipeline) -> None:
    known = {source.name for source in whole.sources}
    for step in whole.steps:
        assert set(step.reads) <= known, step.name
        known.update(step.gives)
    assert {sink.reads for sink in whole.sinks} <= known


def test_sinks_of_the_documented_file(whole: Pipeline) -> None:
    sinks = {sink.name: sink for sink in whole.sinks}
    topic, table, screen = sinks["revenue_topic"], sinks["lake"], sinks["screen"]
    assert isinstance(topic, TopicSink) and isinstance(table, TableSink) and isinstance(screen, ConsoleSink)
    assert (topic.topic, topic.key, topic.delivery) == ("revenue-per-minute", "city", Delivery.EXACTLY_ONCE)
    assert [(header.name, header.expression) for header in topic.headers] == [("origin", "'shop'")]
    assert (table.format, table.partition_by) == (TableFormat.DELTA, ("days(at)",))
    assert table.trigger is not None and table.trigger.every == Duration(60_000)
    assert screen.mode is OutputMode.APPEND and screen.rows == 20


def test_every_part_knows_its_line(whole: Pipeline) -> None:
    lines = Path(whole.file).read_text().splitlines()
    for part in (*whole.sources, *whole.steps, *whole.sinks):
        assert lines[part.line - 1].strip().startswith(f"{part.name}:")


def test_names_are_derived_from_pipeline_and_sink_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_STATE_HOME", str(tmp_path / "state"))
    small = pipeline_of(tmp_path, pipeline_text())
    large = pipeline_of(
        tmp_path,
        pipeline_text(
            SOURCE + PAYMENTS,
            "big:\n  sql: SELECT * FROM orders WHERE amount > 100",
            "more: {from: big, console: }\nother: {from: payments, topic: p}" + SINK,
        ),
    )
    for pipeline in (small, large):
        sink = next(sink for sink in pipeline.sinks if sink.name == "out")
        source = next(source for source in pipeline.sources if source.name == "orders")
        assert isinstance(source, TopicSource)
        assert query_name(pipeline.name, sink.name) == "shop.out"
        assert consumer_group(pipeline.name, sink, source) == "shop.out"
        assert checkpoint_location(pipeline, "shop.out") == str(tmp_path / "state/shop/checkpoints/out")
        assert checkpoint_location(pipeline, "shop.out", "s3://x/") == "s3://x/shop/out"


def test_a_short_definition_has_defaults(tmp_path: Path) -> None:
    pipeline = pipeline_of(
        tmp_path, pipeline_text("orders: {topic: orders}", "", "out: {from: orders, topic: copy, format: raw}")
    )
    (source,), (sink,) = pipeline.sources, pipeline.sinks
    assert pipeline.bootstrap == "localhost:9092"
    assert pipeline.trigger.kind is TriggerKind.AS_SOON_AS_POSSIBLE
    assert isinstance(source, TopicSource) and (source.format, source.key_format) == (Format.RAW, Format.RAW)
    assert source.starting.position == "earliest"
    assert isinstance(sink, TopicSink) and sink.delivery is Delivery.EXACTLY_ONCE
    assert pipeline.dead_letters.topic == "shop.dead-letters"


@pytest.mark.parametrize(
    ("written", "position", "timestamp_ms", "offsets"),
    [
        ("latest", "latest", None, {}),
        ("2026-01-31T12:00:00Z", None, 1769860800000, {}),
        ("2026-01-31", None, 1769817600000, {}),
        ("{orders: {0: 120, 1: earliest, 2: latest}}", None, None, {"orders": {0: 120, 1: -2, 2: -1}}),
        ("table:s3://lake/orders", "table:s3://lake/orders", None, {}),
    ],
)
def test_a_source_begins_at_its_starting_offsets(
    tmp_path: Path, written: str, position: str | None, timestamp_ms: int | None, offsets: dict[str, dict[int, int]]
) -> None:
    text = pipeline_text(
        f"orders: {{topic: orders, starting_offsets: {written}}}", "", "out: {from: orders, topic: o, format: raw}"
    )
    (source,) = pipeline_of(tmp_path, text).sources
    assert isinstance(source, TopicSource)
    assert (source.starting.position, source.starting.timestamp_ms, source.starting.offsets) == (
        position,
        timestamp_ms,
        offsets,
    )


@pytest.mark.parametrize(
    ("window", "kind", "size_ms", "slide_ms"),
    [
        ("tumbling: 90 seconds", WindowKind.TUMBLING, 90_000, None),
        ("sliding: {size: 1h 30m, every: 15 min}", WindowKind.SLIDING, 5_400_000, 900_000),
        ("session: 30m", WindowKind.SESSION, 1_800_000, None),
    ],
)
def test_windows_are_parsed(tmp_path: Path, window: str, kind: WindowKind, size_ms: int, slide_ms: int | None) -> None:
    body = f"from: orders\n    {window}\n    group_by: {{where: upper(shop)}}\n    aggregate: {{n: count(*)}}"
    step = f"w:\n  window:\n    {body}"
    (found,) = pipeline_of(tmp_path, pipeline_text(steps=step, sinks="out: {from: w, topic: out}")).steps
    assert isinstance(found, Window)
    assert (found.window, found.size) == (kind, Duration(size_ms))
    assert found.slide == (Duration(slide_ms) if slide_ms else None)
    assert [(column.name, column.expression) for column in found.group_by] == [("where", "upper(shop)")]


def test_environment_and_yaml_conveniences(tmp_path: Path) -> None:
    text = pipeline_text(
        """
        orders: &json
          topic: ${TOPIC}
          format: json
          schema: a STRING
        more:
          <<: *json
          topic: more
        """,
        "both:\n  sql: SELECT a, '$${literal}' FROM orders UNION ALL SELECT a, '${X:-none}' FROM more",
        "out: {from: both, topic: out}",
    )
    pipeline = pipeline_of(tmp_path, text, TOPIC="from-environment")
    orders, more = pipeline.sources
    assert isinstance(orders, TopicSource) and isinstance(more, TopicSource)
    assert orders.topics == ("from-environment",)
    assert more.topics == ("more",) and more.format is Format.JSON
    (step,) = pipeline.steps
    assert isinstance(step, Sql) and "'${literal}'" in step.query and "'none'" in step.query


def test_load_raises_with_every_mistake(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("name: x\nsourcs: {}\nsinks: {out: {from: nowhere, topic: out}}\n")
    with pytest.raises(InvalidPipelineError) as raised:
        load(file)
    text = str(raised.value)
    assert f"{file}:2:1: error: the pipeline has no key 'sourcs'; did you mean 'sources'?" in text
    assert "there is no source, step or branch 'nowhere'" in text
