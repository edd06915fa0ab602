"""Long requests: handled in parts and in slices, so that they do not block the event loop.

A handler processes its rows without a pause. With 100,000 rows that takes seconds. The APIs in `SPLITS` are handled in
parts of some hundred rows: each part goes to the handler as a request, and the responses are joined. The event loop
serves other requests in between. That is right if the rows of a request do not depend on each other, as with most APIs
of Kafka. The array items of other requests are limited (`most_items`).

`Turnstile` queues slices of long work: one runs in each turn of the event loop, the oldest first. So ten connections
with long requests take no more of a turn than one. `TurnWatch` counts turns that take long, and logs them with the API
and the client (rate-limited).
"""

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from millstream.common.prometheus import Histogram
from millstream.formats.protocol.schema import Message
from millstream.node.server.limits import LogThrottle
from millstream.node.server.request import Context, Handler, Response
from millstream.node.server.service import Peer

LONG_TURN_SECONDS = 0.05
_LONG_TURN_BUCKETS_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_log = logging.getLogger("millstream.turns")
_log.addFilter(LogThrottle())
T = TypeVar("T")


class TurnWatch:
    def __init__(self, now: Callable[[], float]) -> None:
        """`now` returns the time in seconds; in the simulator a turn takes no time."""
        self.now = now
        self.long_turns: dict[str, Histogram] = {}
        """Durations by API."""

    def expect(self, api: str) -> None:
        """Adds an API before it has had a long turn."""
        self.long_turns.setdefault(api, Histogram(_LONG_TURN_BUCKETS_SECONDS))

    def ended(self, begun: float, api: str, peer: Peer) -> float:
        """Called at the end of a turn that handled a request; returns its seconds."""
        seconds = self.now() - begun
        if seconds > LONG_TURN_SECONDS:
            self.expect(api)
            self.long_turns[api].observe(seconds)
            _log.warning(
                "long_turn api=%s peer=%s:%d client_id=%s ms=%d: nothing else was served meanwhile",
                api, peer.host, peer.port, peer.client_id, seconds * 1000,
            )  # fmt: skip
        return seconds

    def over(self, coroutine: Coroutine[Any, Any, T], api: str, peer: Peer, awaited: object = None) -> "Watched[T]":
        """The coroutine, with each of its turns watched. `awaited` is what it awaits first."""
        return Watched(coroutine, self, api, peer, awaited)


class Watched(Coroutine[Any, Any, T]):
    """Delegates to a coroutine, and measures each step.

    A coroutine that ends before its first step does not close the one that it would await. So both are closed here: the
    interpreter warns of a coroutine that was never awaited.
    """

    __slots__ = ("_api", "_awaited", "_coroutine", "_peer", "_watch", "seconds")

    def __init__(
        self, coroutine: Coroutine[Any, Any, T], watch: TurnWatch, api: str, peer: Peer, awaited: object
    ) -> None:
        self._coroutine = coroutine
        self._awaited = awaited
        self._watch = watch
        self._api = api
        self._peer = peer
        self.seconds = 0.0
        """The time that its turns took."""

    def send(self, value: Any) -> Any:
        begun = self._watch.now()
        try:
            return self._coroutine.send(value)
        finally:
            self.seconds += self._watch.ended(begun, self._api, self._peer)

    def throw(self, *error: Any) -> Any:
        begun = self._watch.now()
        try:
            return self._coroutine.throw(*error)
        except BaseException:
            self._close_awaited()
            raise
        finally:
            self.seconds += self._watch.ended(begun, self._api, self._peer)

    def close(self) -> None:
        self._coroutine.close()
        self._close_awaited()

    def _close_awaited(self) -> None:
        if inspect.iscoroutine(self._awaited) and inspect.getcoroutinestate(self._awaited) == inspect.CORO_CREATED:
            self._awaited.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._coroutine.__await__()


class Turnstile:
    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.passed = 0
        """Number of slices that ran; for tests and metrics."""

    async def next_turn(self) -> None:
        """Returns in a later turn of the loop, after earlier waiters."""
        loop = asyncio.get_running_loop()
        mine: asyncio.Future[None] = loop.create_future()
        self._waiting.append(mine)
        if len(self._waiting) == 1:
            loop.call_soon(self._release)
        await mine

    def _release(self) -> None:
        while self._waiting:
            first = self._waiting[0]
            if first.cancelled():
                self._waiting.popleft()
                continue
            first.set_result(None)
            self._waiting.popleft()
            self.passed += 1
            break
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._release)

    async def through(self, steps: "Generator[None, None, T]") -> T:
        """Runs a generator, one step in each turn; returns its result."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            await self.next_turn()


_ROWS = 500
_SPLIT_ITEMS = 200_000
_WHOLE_ITEMS = 20_000
_FEW_ITEMS = 1_000


class Level(NamedTuple):
    """An array of the request, and the array of the response with its rows."""

    request_field: str
    response_field: str
    key: tuple[str, ...] = ()
    """The fields that identify a row; none if the row itself is the name or number."""


@dataclass(frozen=True, slots=True)
class Split:
    levels: tuple[Level, ...]
    """From the outermost array to that of the rows."""
    most: int = _ROWS
    """Rows in a part."""
    once: bool = False
    """Whether repeated rows are left out: the response is far longer than the request."""


def _flat(request_field: str, response_field: str, *key: str, most: int = _ROWS, once: bool = False) -> Split:
    return Split((Level(request_field, response_field, key),), most, once)


def _topics(
    request_field: str, response_field: str, *, of: str = "topics", key: str = "name", row: str = "", most: int = _ROWS
) -> Split:
    """Topics with partitions in them."""
    return Split((Level("topics", of, (key,)), Level(request_field, response_field, (row,) if row else ())), most)


_HASHED_ROWS = 25
"""For rows with an id that is hashed byte by byte; it may be long."""
_WRITTEN_ROWS = 50
"""For rows that become a record in a log."""
_SHARE_STATE = _topics("partitions", "partitions", of="results", key="topic_id", row="partition", most=_WRITTEN_ROWS)
SPLITS: dict[str, tuple[Split, ...]] = {
    "list_offsets": (_topics("partitions", "partitions", row="partition_index"),),
    "offset_commit": (_topics("partitions", "partitions", row="partition_index"),),
    "txn_offset_commit": (_topics("partitions", "partitions", row="partition_index"),),
    "offset_delete": (_topics("partitions", "partitions", row="partition_index"),),
    "offset_for_leader_epoch": (_topics("partitions", "partitions", key="topic", row="partition"),),
    "find_coordinator": (_flat("coordinator_keys", "coordinators", most=_HASHED_ROWS, once=True),),
    "leave_group": (_flat("members", "members", "member_id", "group_instance_id"),),
    "share_group_describe": (_flat("group_ids", "groups", most=50, once=True),),
    "streams_group_describe": (_flat("group_ids", "groups", most=50, once=True),),
    "describe_configs": (_flat("resources", "results", "resource_type", "resource_name", most=10, once=True),),
    "describe_producers": (_topics("partition_indexes", "partitions"),),
    "describe_transactions": (_flat("transactional_ids", "transaction_states", most=_HASHED_ROWS, once=True),),
    "add_partitions_to_txn": (_flat("transactions", "results_by_transaction", "transactional_id", most=50),),
    "write_txn_markers": (
        Split(
            (
                Level("markers", "markers", ("producer_id",)),
                Level("topics", "topics", ("name",)),
                Level("partition_indexes", "partitions"),
            ),
        ),
    ),
    "describe_share_group_offsets": (
        Split(
            (
                Level("groups", "groups", ("group_id",)),
                Level("topics", "topics", ("topic_name",)),
                Level("partitions", "partitions"),
            ),
            most=100,
        ),
    ),
    "alter_share_group_offsets": (
        _topics(
            "partitions", "partitions", of="responses", key="topic_name", row="partition_index", most=_WRITTEN_ROWS
        ),
    ),
    "delete_share_group_offsets": (_flat("topics", "responses", "topic_name"),),
    "initialize_share_group_state": (_SHARE_STATE,),
    "read_share_group_state": (_SHARE_STATE,),
    "write_share_group_state": (_SHARE_STATE,),
    "delete_share_group_state": (_SHARE_STATE,),
    "read_share_group_state_summary": (_SHARE_STATE,),
    # Those of the controller
    "delete_topics": (_flat("topics", "responses", "name", "topic_id"), _flat("topic_names", "responses")),
    "create_partitions": (_flat("topics", "results", "name", most=50),),
    "alter_configs": (_flat("resources", "responses", "resource_type", "resource_name", most=50),),
    "incremental_alter_configs": (_flat("resources", "responses", "resource_type", "resource_name", most=50),),
    "elect_leaders": (
        Split(
            (
                Level("topic_partitions", "replica_election_results", ("topic",)),
                Level("partitions", "partition_result"),
            )
        ),
    ),
    "alter_partition_reassignments": (_topics("partitions", "partitions", of="responses", row="partition_index"),),
    "list_partition_reassignments": (_topics("partition_indexes", "partitions"),),
    "alter_partition": (_topics("partitions", "partitions", key="topic_id", row="partition_index"),),
    "assign_replicas_to_dirs": (
        Split(
            (
                Level("directories", "directories", ("id_",)),
                Level("topics", "topics", ("topic_id",)),
                Level("partitions", "partitions", ("partition_index",)),
            ),
        ),
    ),
}

_BOUNDS = dict.fromkeys(SPLITS, _SPLIT_ITEMS) | {
    "add_partitions_to_txn": _WHOLE_ITEMS,
    "create_topics": _SPLIT_ITEMS,
    "offset_fetch": _SPLIT_ITEMS,
    "delete_records": _SPLIT_ITEMS,
    "describe_groups": _SPLIT_ITEMS,
    "consumer_group_describe": _SPLIT_ITEMS,
    "delete_groups": _SPLIT_ITEMS,
    "describe_log_dirs": _SPLIT_ITEMS,
    "share_fetch": _SPLIT_ITEMS,
    "share_acknowledge": _SPLIT_ITEMS,
    # Users and tokens: each row costs some hashes
    **dict.fromkeys(
        (
            "sasl_handshake",
            "sasl_authenticate",
            "alter_user_scram_credentials",
            "describe_user_scram_credentials",
            "create_delegation_token",
            "renew_delegation_token",
            "expire_delegation_token",
            "describe_delegation_token",
        ),
        _FEW_ITEMS,
    ),
    # One voter set, one topic, a handful of listeners and features
    **dict.fromkeys(
        (
            "fetch",
            "vote",
            "begin_quorum_epoch",
            "end_quorum_epoch",
            "describe_quorum",
            "fetch_snapshot",
            "add_raft_voter",
            "update_raft_voter",
            "broker_registration",
            "broker_heartbeat",
            "controller_registration",
            "update_features",
            "list_config_resources",
        ),
        _FEW_ITEMS,
    ),
}


def most_items(api: str) -> int:
    """The limit of array items in a request, over all its arrays. A request above it closes its connection."""
    return _BOUNDS.get(api, _WHOLE_ITEMS)


def is_split(api: str, request: Message) -> bool:
    """Whether the request has so many rows that it is handled in parts."""
    return _split_of(api, request) is not None


def respond(
    api: str, handler: Handler, request: Message, context: Context, turnstile: Turnstile
) -> "Response | Awaitable[Response]":
    """The handler's response; for a long request the joined responses of its parts."""
    split = _split_of(api, request)
    if split is None:
        return handler(request, context)
    return in_parts(split, lambda part: handler(part, context), request, turnstile)


def _split_of(api: str, request: Message) -> Split | None:
    for split in SPLITS.get(api, ()):
        if _left_after(request, split.levels, split.most) < 0:
            return split
    return None


def _left_after(message: Message, levels: tuple[Level, ...], left: int) -> int:
    rows = getattr(message, levels[0].request_field)
    if rows is None:
        return left
    left -= len(rows)
    if len(levels) > 1:
        for row in rows:
            if left < 0:
                break
            left = _left_after(row, levels[1:], left)
    return left


async def in_parts(
    split: Split,
    handle: "Callable[[Message], Response | Awaitable[Response]]",
    request: Message,
    turnstile: Turnstile,
) -> dict[str, Any]:
    """Handles one part in each turn of the loop; returns the joined responses."""
    joined: dict[str, Any] | None = None
    for part in parts(request, split):
        given = handle(part)
        response = await given if isinstance(given, Awaitable) else given
        assert isinstance(response, Mapping), "a handler whose requests are cut responds with fields"
        if joined is None:
            joined = dict(response)
        else:
            _join(joined, response, split.levels)
            if response.get("throttle_time_ms", 0) > joined.get("throttle_time_ms", 0):
                joined["throttle_time_ms"] = response["throttle_time_ms"]
        if response.get("error_code"):
            # The error is of the whole request. Earlier parts stay done, as after a lost response.
            return {**joined, "error_code": response["error_code"]}
        await turnstile.next_turn()
    assert joined is not None, "a request that is cut has rows"
    return joined


# Cutting


def parts(request: Message, split: Split) -> Iterator[Message]:
    """Splits the request into requests with a limited number of rows, lazily."""
    rows = _rows(request, split.levels)
    if split.once:
        rows = _once(rows, split.levels)
    first = True
    while some := list(islice(rows, split.most)):
        yield _rebuilt(request, some, split.levels)
        first = False
    if first:
        yield request


Path = tuple[Any, ...]


def _rows(message: Message, levels: tuple[Level, ...]) -> Iterator[Path]:
    """Each row with its parents, from the outermost array on. A parent without rows is a shorter path."""
    for row in getattr(message, levels[0].request_field) or ():
        if len(levels) == 1:
            yield (row,)
            continue
        is_empty = True
        for inner in _rows(row, levels[1:]):
            is_empty = False
            yield (row, *inner)
        if is_empty:
            yield (row,)


def _once(rows: Iterator[Path], levels: tuple[Level, ...]) -> Iterator[Path]:
    seen: set[tuple[Any, ...]] = set()
    for path in rows:
        name = tuple(_name(row, level) for row, level in zip(path, levels, strict=False))
        if name not in seen:
            seen.add(name)
            yield path


def _name(row: Any, level: Level) -> Any:
    return tuple(getattr(row, field, None) for field in level.key) if level.key else row


def _rebuilt(message: Message, paths: list[Path], levels: tuple[Level, ...]) -> Message:
    """A copy of the message that has these rows and no others."""
    level = levels[0]
    rows: list[Any] = []
    if len(levels) == 1:
        rows = [path[0] for path in paths]
    else:
        begin = 0
        for at in range(1, len(paths) + 1):
            if at < len(paths) and paths[at][0] is paths[begin][0]:
                continue
            inner = [path[1:] for path in paths[begin:at] if len(path) > 1]
            rows.append(_rebuilt(paths[begin][0], inner, levels[1:]) if inner else paths[begin][0])
            begin = at
    return copied(message, **{level.request_field: rows})


def copied(message: Message, **changes: Any) -> Message:
    """A copy of a message with other values in some fields."""
    copy = type(message)()
    # A request that is read by hand is an object of a compiled class, which has no slots.
    names: tuple[str, ...] = message.__slots__ if isinstance(message, Message) else message.FIELDS
    for name in names:
        setattr(copy, name, changes[name] if name in changes else getattr(message, name))
    return copy


# Joining


def _join(joined: dict[str, Any], response: Mapping[str, Any], levels: tuple[Level, ...]) -> None:
    level = levels[0]
    rows, more = joined.get(level.response_field), response.get(level.response_field)
    if not more:
        return
    if not rows:
        joined[level.response_field] = list(more)
        return
    rows = joined[level.response_field] = rows if isinstance(rows, list) else list(rows)
    first = more[0]
    if len(levels) > 1 and _is_same(rows[-1], first, levels[1].response_field):
        rows[-1] = dict(rows[-1])
        _join(rows[-1], first, levels[1:])
        more = more[1:]
    rows.extend(more)


def _is_same(row: Mapping[str, Any], other: Mapping[str, Any], inner: str) -> bool:
    """Whether a row of the response was split: all fields except its inner rows are equal."""
    return all(row.get(name) == other.get(name) for name in {*row, *other} - {inner})
