"""Consumer routes: subscribe, poll, commit, seek, show, leave. `session` has the consumer itself."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple, TypedDict

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from millstream.access.roles import Role
from millstream.gateway.consumers import bodies
from millstream.gateway.consumers.bodies import (
    MAX_POLL_BYTES,
    MAX_POLL_MS,
    MAX_POLL_RECORDS,
    AssignedPartition,
    Consumers,
    ConsumerState,
    GroupConsumers,
    Offsets,
    PollResult,
    RecordView,
    Seek,
    SeekResult,
    Subscription,
    read_format,
)
from millstream.gateway.consumers.progress import Batch
from millstream.gateway.consumers.session import Session
from millstream.gateway.consumers.sessions import Sessions
from millstream.gateway.http.errors import JSON, ApiError, json_bytes
from millstream.gateway.http.request import ApiRequest
from millstream.gateway.http.routes import endpoint
from millstream.gateway.identity.caller import current_caller
from millstream.gateway.identity.missing_acl import Needs
from millstream.raw_client import TopicPartition
from millstream.registry.decoding import Decoder

_GROUP = "/consumers/{group}"
_EXPIRES_HEADER = "Consumer-Expires-In-Ms"
_DEFAULT_RECORDS, _DEFAULT_MS, _DEFAULT_BYTES = 500, 1_000, 1 << 20


class _Consuming(TypedDict):
    role: Role
    needs: Needs


CONSUMING: _Consuming = {"role": Role.OPERATOR, "needs": Needs(topic="Read", group="Read")}
"""A consumer moves the offsets of its group, so viewers have none."""


class ConsumerRoutes:
    def __init__(self, sessions: Sessions, decoder: Decoder) -> None:
        self._sessions = sessions
        self._decoder = decoder

    def routes(self) -> list[BaseRoute]:
        return [
            endpoint("POST", f"{_GROUP}/subscribe", self.subscribe, doc=bodies.SUBSCRIBE, **CONSUMING),
            endpoint("GET", f"{_GROUP}/poll", self.poll, doc=bodies.POLL, **CONSUMING),
            endpoint("POST", f"{_GROUP}/offsets", self.commit, doc=bodies.COMMIT, **CONSUMING),
            endpoint("POST", f"{_GROUP}/seek", self.seek, doc=bodies.SEEK, **CONSUMING),
            endpoint("GET", "/consumers", self.show_all, doc=bodies.SHOW_ALL),
            endpoint("GET", _GROUP, self.show, doc=bodies.SHOW),
            endpoint("DELETE", _GROUP, self.leave, doc=bodies.LEAVE, **CONSUMING),
        ]

    async def subscribe(self, req: ApiRequest) -> Any:
        wanted = req.read(Subscription)
        session, _ = await self._sessions.subscribe(
            _group(req),
            _instance(req, wanted.instance_id or ""),
            sorted(set(wanted.topics)),
            wanted.auto_offset_reset,
            None if wanted.expires_after_ms is None else wanted.expires_after_ms / 1000,
        )
        return _shown(session)

    async def poll(self, req: ApiRequest) -> Any:
        refuse_others(req.request)
        max_records = req.number_within("max_records", _DEFAULT_RECORDS, 1, MAX_POLL_RECORDS)
        timeout_ms = req.number_within("timeout_ms", _DEFAULT_MS, 0, MAX_POLL_MS)
        max_bytes = req.number_within("max_bytes", _DEFAULT_BYTES, 1, MAX_POLL_BYTES)
        view = RecordView(read_format(req.text("format")), self._decoder, current_caller().mask_of)
        limits = PollLimits(max_records, max_bytes, timeout_ms / 1000)
        return await poll(req.request, self._sessions, self._find(req), limits, partial(_rendered, view))

    async def commit(self, req: ApiRequest) -> Any:
        wanted = req.read(Offsets).offsets if req.body.strip() else None
        offsets = None if wanted is None else _by_partition(wanted)
        session = self._find(req)
        committed = await session.commit(offsets)
        self._sessions.used(session)
        return Offsets(_by_topic(committed))

    async def seek(self, req: ApiRequest) -> Any:
        wanted = req.read(Seek)
        session = self._find(req)
        if session.polling:
            raise ApiError(409, "a poll of this consumer is in progress", "seek after its response", code=40907)
        offset = await session.seek(TopicPartition(wanted.topic, wanted.partition), wanted.offset)
        self._sessions.used(session)
        return SeekResult(wanted.topic, wanted.partition, offset)

    async def show(self, req: ApiRequest) -> Any:
        group, instance = _group(req), _instance(req)
        found = [self._sessions.find(group, instance)] if instance else self._sessions.of_group(group)
        if not found:
            self._sessions.find(group, instance)  # raises the reason
        return GroupConsumers(group, [_shown(session) for session in found])

    async def show_all(self, req: ApiRequest) -> Any:
        return Consumers([_shown(session) for session in req.page(self._sessions.all())])

    async def leave(self, req: ApiRequest) -> None:
        await self._sessions.close(self._find(req))

    def _find(self, req: ApiRequest) -> Session:
        session = self._sessions.find(_group(req), _instance(req))
        self._sessions.used(session)
        return session


class PollLimits(NamedTuple):
    max_records: int
    max_bytes: int
    timeout_s: float


Render = Callable[[Batch], tuple[bytes, Batch]]
"""Returns the body, and the records that are in it: all, or those before a record that cannot be shown. May block."""


async def poll(
    request: Request,
    sessions: Sessions,
    session: Session,
    limits: PollLimits,
    render: Render,
    media_type: str = JSON,
) -> Response:
    """The response to a poll: the next records. Positions move when it is sent."""
    if session.polling:
        raise ApiError(
            409,
            "another poll of this consumer is in progress",
            "wait for its response, or use a different instance_id for each program",
            code=40907,
        )
    session.polling = True
    try:
        async with _caller(request) as gone:
            await session.auto_commit()
            return await _poll(session, limits, render, media_type, gone)
    finally:
        session.polling = False
        sessions.used(session)


async def _poll(
    session: Session, limits: PollLimits, render: Render, media_type: str, gone: "asyncio.Task[None]"
) -> Response:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limits.timeout_s
    while True:
        left_s = max(0.0, deadline - loop.time())
        batch = await _unless_gone(session.next(limits.max_records, limits.max_bytes, left_s), gone)
        if batch is None:
            return Response(status_code=499)  # the caller has disconnected
        body, shown = await to_thread.run_sync(render, batch)
        if gone.done():
            return Response(status_code=499)
        if session.hand_out(shown):
            headers = {_EXPIRES_HEADER: str(int(session.idle_s * 1000))}
            return _PollResponse(body, headers, media_type, partial(session.take_back, shown))


async def _unless_gone(work: Any, gone: "asyncio.Task[None]") -> Batch | None:
    """None if the caller disconnects before it is done."""
    task: asyncio.Task[Batch] = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()


class _PollResponse(Response):
    """A response with records. If it cannot be sent, the positions are moved back."""

    def __init__(self, body: bytes, headers: dict[str, str], media_type: str, take_back: Callable[[], None]) -> None:
        super().__init__(body, 200, headers, media_type)
        self._take_back = take_back

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        except BaseException:
            self._take_back()
            raise


@asynccontextmanager
async def _caller(request: Request) -> AsyncIterator["asyncio.Task[None]"]:
    """A task that ends when the caller disconnects."""

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task = asyncio.create_task(disconnected())
    try:
        yield task
    finally:
        task.cancel()


def refuse_others(request: Request) -> None:
    """A poll moves the position although it is a GET. So HEAD is refused, and requests from pages of other sites, which
    browsers mark."""
    if request.method != "GET":
        raise ApiError(405, f"{request.method} is not supported for a poll", "send GET")
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise ApiError(403, "polls from pages of other sites are refused", "use a page of this gateway, or a program")


def _rendered(view: RecordView, batch: Batch) -> tuple[bytes, Batch]:
    return json_bytes(PollResult([view.shown(partition, record) for partition, record in batch.records])), batch


def _group(req: ApiRequest) -> str:
    return req.path("group")


def _instance(req: ApiRequest, named: str = "") -> str:
    """From the query, the header or the body."""
    return req.text("instance_id") or req.request.headers.get("consumer-instance-id", "") or named


def _shown(session: Session) -> ConsumerState:
    return ConsumerState(
        group=session.group,
        instance_id=session.instance,
        member_id=session.member_id,
        topics=list(session.topics),
        auto_offset_reset=session.reset,
        polling=session.polling,
        expires_in_ms=int(session.expires_in_s * 1000),
        partitions=[
            AssignedPartition(
                partition.topic,
                partition.partition,
                None if progress is None else progress.position,
                None if progress is None else progress.committed,
                progress is not None and progress.leaving,
            )
            for partition, progress in session.assignment.items()
        ],
    )


def _by_topic(offsets: dict[TopicPartition, int]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for partition, offset in offsets.items():
        found.setdefault(partition.topic, {})[partition.partition] = offset
    return found


def _by_partition(offsets: dict[str, dict[int, int]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, partition): offset
        for topic, partitions in offsets.items()
        for partition, offset in partitions.items()
    }
