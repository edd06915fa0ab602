"""Starts streaming queries and runs them to their end, also on a busy machine."""

from collections.abc import Callable

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from millstream.spark import start_query
from tests.waiting import TIMEOUT_SECONDS

_RUN_SECONDS = 2 * TIMEOUT_SECONDS

Start = Callable[[], StreamingQuery]


def finish_stream(query: StreamingQuery) -> None:
    """Waits for the end of a query. Raises what stopped it."""
    assert query.awaitTermination(int(_RUN_SECONDS)), f"the query has not ended in {_RUN_SECONDS:g} s: {query.status}"


def run_stream(start: Start) -> StreamingQuery:
    """Runs a query to its end. Raises what stopped it."""
    query = start_query(start)
    finish_stream(query)
    return query


def failure_of(query: StreamingQuery) -> str | None:
    """Waits for the end of a query, and returns the text of its error."""
    try:
        finish_stream(query)
    except StreamingQueryException as error:
        return str(error)
    return None
