"""The benchmark of SQL, tiny, so that it does not rot. What it measures is never asserted."""

from __future__ import annotations

import pytest

from benchmarks import sql


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_formats_and_queries_are_measured() -> None:
    results = sql.main(["--tiny"])
    assert [(each["format"], each["query"]) for each in results] == [
        (name, query) for name in sql.FORMATS for query in sql.QUERIES
    ]
    found = {(each["format"], each["query"]): each["rows"] for each in results}
    for name in sql.FORMATS:
        assert (found[name, "group"], found[name, "find"], found[name, "newest"]) == (10, 1, 20)
