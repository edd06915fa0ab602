"""The progress of a query with two sinks, dead letters and two expectations."""

from millstream.pipeline.state import OutputProgress, QueryProgress, RuleProgress, SourceProgress

SHARED = QueryProgress(
    query="shop.orders.sinks",
    sink="sales, lake, checked (dead letters)",
    batch=7,
    batch_ms=1500,
    sources=(SourceProgress(source="orders", rows=100, rows_total=4_200, rows_per_second=67.0, lag=8_765),),
    rows_in_total=4_200,
    rows_in_per_second=67.0,
    rows_out_total=8_000,
    outputs=(
        OutputProgress(sink="sales", rows=50, rows_total=3_100, rows_per_second=33.0),
        OutputProgress(sink="lake", rows=100, rows_total=4_199, rows_per_second=66.0),
        OutputProgress(sink="checked (dead letters)", rows=1, rows_total=701, rows_per_second=1.0, dead_letters=True),
    ),
    expectations=(
        RuleProgress(
            kind="part", part="priced", rule="has_price", action="drop", rows_total=4_200, violations_total=21
        ),
        RuleProgress(kind="sink", part="sales", rule="positive", action="warn", rows_total=4_200),
    ),
)
