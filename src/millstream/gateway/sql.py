"""SQL over HTTP: `POST /v1/sql` runs a query, `POST /v1/sql/pipeline` gives the pipeline file for it (docs/sql.md).

A query runs in a thread, two at a time; more wait for a moment, then get 429. It ends when the caller goes away. It
reads with the rights of the caller, and what is masked for the caller is masked before DuckDB sees it.
"""

import asyncio
import io
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar

from anyio import CapacityLimiter, to_thread
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from millstream.access.roles import Role
from millstream.gateway.context import GatewayContext, caller_registry
from millstream.gateway.http.errors import ApiError
from millstream.gateway.http.request import ApiRequest
from millstream.gateway.http.routes import TEXT, Doc, array, endpoint, record
from millstream.gateway.identity.caller import current_caller
from millstream.gateway.identity.missing_acl import Needs
from millstream.registry.decoding import Decoder
from millstream.registry.local_client import LocalRegistryClient
from millstream.schemas.errors import SchemaError
from millstream.sql.as_pipeline import pipeline_file
from millstream.sql.errors import NotInstalledError, SqlError, Stop, StoppedError
from millstream.sql.output import MEDIA_TYPES, WRITERS, distinct, limited, rows_of
from millstream.sql.query import Access, Limits, Query, Result
from millstream.sql.reading import window_of

_AT_ONCE = 2
_WAIT_SECONDS = 5.0
_MAX_RESULT_BYTES = 64 << 20
_MAX_TIMEOUT_SECONDS = 300.0
_RECORDS_BYTES = 512 << 20
T = TypeVar("T")


class _Body(Struct, forbid_unknown_fields=True):
    query: Annotated[str, Meta(description="A SELECT over topics.", min_length=1, max_length=100_000)]
    last: Annotated[int, Meta(ge=1, le=50_000_000, description="Read the newest N records of each topic.")] | None = (
        None
    )
    since: Annotated[str, Meta(description="Read records since a time, @milliseconds, or an age (1h).")] | None = None
    from_beginning: Annotated[bool, Meta(description="Read all records.")] = False


class SqlBody(_Body):
    """A query."""

    format: Annotated[Literal["json", "csv", "parquet"], Meta(description="Of the response.")] = "json"
    max_rows: Annotated[int, Meta(ge=1, le=1_000_000, description="Most rows of the response.")] = 10_000
    timeout_s: Annotated[float, Meta(gt=0, le=_MAX_TIMEOUT_SECONDS, description="The query ends after this time.")] = (
        30.0
    )


class PipelineBody(_Body):
    """A query to run as a pipeline."""

    topic: Annotated[str, Meta(description="The topic for the rows; default: they are printed.")] | None = None


SQL = Doc(
    tag="SQL",
    summary="Run a SQL query over topics",
    description=(
        "Names of topics are tables. Columns: the fields of the value, and _key, _topic, _partition, _offset, "
        "_timestamp, _headers, _error. The newest 1,000,000 records of each topic are read unless `last`, `since` or "
        "`from_beginning` says otherwise. With `format` csv or parquet the response is the file."
    ),
    body=SqlBody,
    response=record(
        {
            "columns": array(record({"name": TEXT, "type": TEXT})),
            "rows": array(array({})),
            "truncated": {"type": "boolean"},
            "read": array(
                record(
                    {
                        "topic": TEXT,
                        "records": {"type": "integer"},
                        "bytes": {"type": "integer"},
                        "left_out": {"type": "integer"},
                        "format": TEXT,
                        "notes": array(TEXT),
                    }
                )
            ),
        }
    ),
    errors=(408, 422, 429, 501),
    example={"query": "select * from orders limit 10"},
)
PIPELINE = Doc(
    tag="SQL",
    summary="Get the pipeline file for a query",
    body=PipelineBody,
    response=record({"pipeline": TEXT}),
    errors=(422, 429, 501),
    example={"query": "select * from orders where total > 100", "topic": "large-orders"},
)


def sql_routes(parts: GatewayContext) -> Sequence[BaseRoute]:
    routes = _SqlRoutes(parts)
    needs = Needs(topic="Read")
    return [
        endpoint("POST", "/v1/sql", routes.run, doc=SQL, role=Role.VIEWER, needs=needs),
        endpoint("POST", "/v1/sql/pipeline", routes.pipeline, doc=PIPELINE, role=Role.VIEWER, needs=needs),
    ]


class _SqlRoutes:
    def __init__(self, parts: GatewayContext) -> None:
        self._parts = parts
        self._decoder = Decoder(parts.registry)
        self._running = CapacityLimiter(_AT_ONCE)

    async def run(self, req: ApiRequest) -> Any:
        body = req.read(SqlBody, 422)
        stop = Stop(body.timeout_s)
        return await self._in_turn(req.request, stop, lambda: self._run(body, stop))

    async def pipeline(self, req: ApiRequest) -> Any:
        body = req.read(PipelineBody, 422)
        stop = Stop(30.0)
        return await self._in_turn(req.request, stop, lambda: self._pipeline(body, stop))

    async def _in_turn(self, request: Request, stop: Stop, work: Callable[[], T]) -> T:
        """Runs it in a thread, when there is one. The caller's end is its end."""
        token = object()
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                await self._running.acquire_on_behalf_of(token)
        except TimeoutError:
            raise ApiError(
                429, f"{_AT_ONCE} queries are running", "try again in some seconds", headers={"Retry-After": "5"}
            ) from None
        watching = asyncio.create_task(_cancel_when_gone(request, stop))
        try:
            return await to_thread.run_sync(lambda: _explained(work), limiter=CapacityLimiter(1))
        finally:
            watching.cancel()
            self._running.release_on_behalf_of(token)

    def _query(self, body: _Body, stop: Stop) -> Query:
        caller = current_caller()
        access = Access(
            LocalRegistryClient(caller_registry(self._parts.registry)), caller.mask_of, self._decoder.decode
        )
        window = window_of(body.last, body.since, body.from_beginning)
        limits = Limits(window, records_bytes=_RECORDS_BYTES, is_isolated=True)
        return Query(caller.connection.cluster, body.query, access=access, limits=limits, stop=stop)

    def _run(self, body: SqlBody, stop: Stop) -> Any:
        with self._query(body, stop).run() as result:
            if body.format == "json":
                return _document(result, body.max_rows)
            file = _BoundedFile(_MAX_RESULT_BYTES)
            WRITERS[body.format](result.schema, limited(result.batches, body.max_rows), file)
            name = f"attachment; filename=rows.{body.format}"
            return Response(file.getvalue(), 200, {"Content-Disposition": name}, MEDIA_TYPES[body.format])

    def _pipeline(self, body: PipelineBody, stop: Stop) -> Any:
        query = self._query(body, stop)
        columns = {name: query.columns(topic) for name, topic in query.topics.items()}
        bootstrap = self._parts.options.bootstrap
        text = pipeline_file(query.statement, columns, bootstrap=bootstrap, sink_topic=body.topic)
        return {"pipeline": text}


async def _cancel_when_gone(request: Request, stop: Stop) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    stop.cancel()


def _explained(work: Callable[[], T]) -> T:
    try:
        return work()
    except NotInstalledError as error:
        raise ApiError(501, error.message, f"on the machine of the gateway: {error.hint}") from None
    except StoppedError as error:
        raise ApiError(408, error.message, error.hint) from None
    except SqlError as error:
        raise ApiError(422, error.message, error.hint or "docs/sql.md describes queries") from None
    except SchemaError as error:
        raise ApiError(422, str(error), "check the schema of the topic") from None


def _document(result: Result, most: int) -> dict[str, Any]:
    rows: list[list[Any]] = []
    size = 0
    for batch in limited(result.batches, most + 1):
        size += batch.nbytes
        if size > _MAX_RESULT_BYTES:
            raise _too_large()
        rows += rows_of(batch)
    names = distinct(result.schema.names)
    return {
        "columns": [{"name": name, "type": kind} for name, kind in zip(names, result.types, strict=True)],
        "rows": rows[:most],
        "truncated": len(rows) > most,
        "read": [
            {
                "topic": each.topic,
                "records": each.records,
                "bytes": each.size_bytes,
                "left_out": each.left_out,
                "format": each.format,
                "notes": each.notes,
            }
            for each in result.read
        ],
    }


def _too_large() -> ApiError:
    size = _MAX_RESULT_BYTES >> 20
    return ApiError(422, f"the result is larger than {size} MB", "select fewer columns or rows, or use millstream sql")


class _BoundedFile(io.BytesIO):
    def __init__(self, most_bytes: int) -> None:
        super().__init__()
        self._most = most_bytes

    def write(self, data: Any) -> int:
        if self.tell() + len(memoryview(data)) > self._most:
            raise _too_large()
        return super().write(data)
