"""The benchmark of SQL, tiny, so that it does not rot. What it measures is never asserted."""

from __future__ import annotations

import pytest

from benchmarks import sql


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_formats_and_queries_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    results = sql.main(["--tiny"])
    assert sql.summary(results) in capsys.readouterr().out
    assert [(each["format"], each["query"]) for each in results] == [
        (name, query) for name in sql.FORMATS for query in sql.QUERIES
    ]
    found = {(each["format"], each["query"]): each["rows"] for each in results}
    for name in sql.FORMATS:
        assert (found[name, "group"], found[name, "find"], found[name, "newest"]) == (10, 1, 20)


def test_the_summary_has_the_slowest_queries_beside_the_target() -> None:
    rows = [("avro", 0.4, 1.2), ("avro", 0.7, 0.9), ("json", 1.5, 2.0)]
    results = [{"format": name, "http_s": http_s, "command_s": command_s} for name, http_s, command_s in rows]
    assert sql.summary(results).splitlines()[2:] == [
        "| avro | 0.70 s | 1.20 s | HTTP |",
        "| json | 1.50 s | 2.00 s | none |",
    ]
