"""Why a pipeline is slow: the sentence for each cause, with its numbers."""

from typing import Any

import pytest

from millstream.doctor.pipelines import why_slow


def query(**changes: Any) -> dict[str, Any]:
    usual = {"sources": [{"rows": 5000, "lag": 1_000_000}], "rows_in_per_second": 10_000.0, "batch_ms": 4000}
    return {"active": True, **usual, **changes}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"error": "disk full"}, "It does not run: disk full."),
        ({"active": False}, "It has ended with 1,000,000 records not read."),
        ({"batch_ms": None}, "No batch is complete yet"),
        ({"sources": [{"rows": 5000, "lag": 10}]}, "It is not slow: 10 records wait, and a batch takes 4,000 ms."),
        ({"trigger_ms": 60_000}, "It waits for its trigger: a batch takes 4,000 ms, one begins every 60,000 ms"),
        ({"state_bytes": 3 << 30, "state_rows": 7}, "Its state is large, 3.0 GB in 7 rows"),
        ({"sources": [{"rows": 20, "lag": 9000}], "batch_ms": 150}, "Its batches are small: 20 rows in 150 ms"),
        (
            {"durations_ms": {"addBatch": 3500, "walCommit": 90}},
            "Most of a batch is computing and writing rows: 3,500 of 4,000 ms for 5,000 rows; 1,000,000 records wait",
        ),
        (
            {
                "sources": [{"rows": 5, "lag": 0}],
                "watermark": "2026-01-01T00:00:00.000Z",
                "updated_ms": 1_767_312_000_000,
                "state_rows": 3,
            },
            "its watermark is 24 hours behind the clock",
        ),
    ],
)
def test_each_cause_has_its_sentence(changes: dict[str, Any], expected: str) -> None:
    assert expected in why_slow(query(**changes))
