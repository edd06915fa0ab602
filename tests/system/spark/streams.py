"""Starts streaming queries and runs them to their end, also on a busy machine.

Spark starts a Python process for each source of ours and waits ten seconds for it. That time is fixed in Spark, and a
busy machine may need longer. Such a query ends before its first batch, and is started again, as pipelines do it.
"""

import time
from collections.abc import Callable

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from tests.waiting import PATIENCE_S

_SLOW_PYTHON = "Python worker failed to connect back"
_STARTS = 9
_RUN_S = 2 * PATIENCE_S
_PAUSE_S = 0.05

Start = Callable[[], StreamingQuery]


def start_stream(start: Start) -> StreamingQuery:
    """Starts a query, and returns when its sources are there, or when it ended for another reason."""
    for _ in range(_STARTS - 1):
        query = start()
        while query.isActive and str(query.status["message"]).startswith("Initializing"):
            time.sleep(_PAUSE_S)
        if _SLOW_PYTHON not in str(query.exception() or ""):
            return query
    return start()


def finish_stream(query: StreamingQuery) -> None:
    """Waits for the end of a query. Raises what stopped it."""
    assert query.awaitTermination(int(_RUN_S)), f"the query has not ended in {_RUN_S:g} s: {query.status}"


def run_stream(start: Start) -> StreamingQuery:
    """Runs a query to its end. Raises what stopped it."""
    query = start_stream(start)
    finish_stream(query)
    return query


def failure_of(query: StreamingQuery) -> str | None:
    """Waits for the end of a query, and returns the text of its error."""
    try:
        finish_stream(query)
    except StreamingQueryException as error:
        return str(error)
    return None
