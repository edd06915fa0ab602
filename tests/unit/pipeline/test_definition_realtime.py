"""What `latency: realtime` refuses, and what it says about itself."""

from pathlib import Path

import pytest

from tests.system.pipeline.definitions import look_at, messages, pipeline_text

SOURCE = "orders: {topic: orders, format: json, schema: 'id STRING, at TIMESTAMP', bad_records: drop}"
TOP = "name: shop\nlatency: realtime"


def test_at_least_once_is_said(tmp_path: Path) -> None:
    found = look_at(tmp_path, pipeline_text(SOURCE, "", "out: {from: orders, topic: out}", TOP))
    assert found.pipeline is not None
    assert messages(found) == [
        "2:10 warning `latency: realtime` writes at least once; for exactly once remove it",
    ]


@pytest.mark.parametrize(
    ("source", "steps", "sinks", "expected"),
    [
        (SOURCE.replace("drop", "dead_letters"), "", "out: {from: orders, topic: out}", "needs `bad_records: drop`"),
        (SOURCE, "", "out: {from: orders, table: ./out}", "sink 'out' must be a topic"),
        (SOURCE, "", "out: {from: orders, topic: out, trigger: every 5s}", "remove `trigger` and `mode`"),
        (
            SOURCE,
            "one: {dedup: {from: orders, key: id}, watermark: {column: at, delay: 1s}}",
            "out: {from: one, topic: out}",
            "dedup step 'one' is not possible",
        ),
        (SOURCE, "", "out: {from: orders, topic: out, expect: {a: id > 0}}", "remove `expect` of 'out'"),
    ],
)
def test_what_is_not_possible_is_told(tmp_path: Path, source: str, steps: str, sinks: str, expected: str) -> None:
    found = messages(look_at(tmp_path, pipeline_text(source, steps, sinks, TOP)))
    assert any(f"latency: realtime: {expected}" in each or expected in each for each in found), found
    assert any("error latency: realtime" in each for each in found)
