"""Mirror links over HTTP: list, create, status, pause, resume, promote, fail over, reverse, verify, delete.

`reverse` and `verify` connect to the source from here, with the login in the body: the cluster does not show that of
the link. Such a login never names a file or an address of tokens, because a caller must not choose what the gateway
reads.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from starlette.routing import BaseRoute

from millstream.access.roles import Role
from millstream.admin.mirror_verification import OutOfTimeError, Verified, verify_topic
from millstream.admin.mirrors import MirrorAdmin, MirrorLink
from millstream.gateway.admin.topics import known
from millstream.gateway.context import GatewayContext
from millstream.gateway.http.errors import ApiError
from millstream.gateway.http.request import ApiRequest
from millstream.gateway.http.routes import (
    FLAG,
    INT32,
    INT64,
    TEXT,
    Doc,
    array,
    endpoint,
    mapping,
    nullable,
    record,
    text,
    whole,
)
from millstream.gateway.identity.caller import caller_cluster
from millstream.gateway.identity.missing_acl import Needs
from millstream.raw_client import Cluster, RefusedError, WireError
from millstream.raw_client.settings import USED

_TAG = "Mirrors"
_ALTER = Needs(topic="AlterConfigs", cluster="AlterConfigs")
_READ = Needs(topic="DescribeConfigs", cluster="DescribeConfigs")
_CLIENT_ID = "millstream-gateway"
_SOURCE_TIMEOUT_SECONDS = 15.0
_VERIFY_SECONDS, _LONGEST_VERIFY_SECONDS = 60, 600
_LOGIN_SETTINGS = tuple(
    name
    for name in USED
    if name.startswith(("security.", "sasl.", "ssl.")) and not name.endswith((".location", ".url"))
)
_OF_REVERSAL = ("bootstrap.servers", "topics", "groups", "prefix", "paused")
"""Settings of the link back that follow from the link itself."""
_NAMES = record({}, {"topics": nullable(array(TEXT))}, closed=True)
_PARTITION = record(
    {
        "partition": INT32,
        "end": INT64,
        "source_end": INT64,
        "lag_records": INT64,
        "lag_bytes": INT64,
        "lag_seconds": {"type": "number"},
        "records_skipped": INT64,
        "records_truncated": INT64,
        "problem": nullable(TEXT),
        "reported_ms": INT64,
    }
)
_STATUS = record(
    {
        "name": TEXT,
        "source": TEXT,
        "source_cluster": TEXT,
        "paused": FLAG,
        "problem": nullable(TEXT),
        "conflicts": mapping(TEXT),
        "topics": array(
            record(
                {
                    "name": TEXT,
                    "source_name": TEXT,
                    "state": text("mirroring, promoting, failed or promoted."),
                    "reason": nullable(TEXT),
                    "partitions": array(_PARTITION),
                }
            )
        ),
    }
)
_LIST = Doc(
    tag=_TAG,
    summary="List mirror links",
    response=record(
        {"mirrors": array(record({"name": TEXT, "source": TEXT, "paused": FLAG, "settings": mapping(TEXT)}))}
    ),
)
_CREATE = Doc(
    tag=_TAG,
    summary="Create a mirror link",
    description="The brokers connect to the source and copy its topics under the same offsets. `settings` are those "
    "of docs/settings.md without their prefix, also those of the connection; secrets are never shown again.",
    body=record({"name": TEXT, "from": TEXT, "topics": TEXT}, {"settings": nullable(mapping(TEXT))}, closed=True),
    response=_STATUS,
    status=201,
    errors=(422,),
    example={"name": "west", "from": "west-1:9092", "topics": "orders.*", "settings": {"groups": ".*"}},
)
_GET = Doc(tag=_TAG, summary="Status of a mirror link: lag and problems", response=_STATUS, errors=(404,))
_DELETE = Doc(
    tag=_TAG,
    summary="Delete a mirror link",
    description="Its topics must be promoted or deleted first.",
    status=204,
    errors=(404,),
)
_PAUSE = Doc(tag=_TAG, summary="Pause a mirror link", response=_STATUS, errors=(404,))
_RESUME = Doc(tag=_TAG, summary="Resume a mirror link", response=_STATUS, errors=(404,))
_PROMOTE = Doc(
    tag=_TAG,
    summary="Promote mirror topics when they have caught up",
    description="Responds at once; the status shows when a topic is promoted. Without `topics`: all of the link.",
    body=_NAMES,
    response=record({"promoting": array(TEXT)}),
    status=202,
    errors=(404, 422),
)
_MISSING = array(record({"topic": TEXT, "partition": INT32, "end": INT64, "source_end": INT64, "records": INT64}))
_SOURCE = nullable(mapping(TEXT))
_FAILOVER = Doc(
    tag=_TAG,
    summary="Promote mirror topics now",
    description="Also without the source. The response has what is missing in each partition; -1 if it is not known.",
    body=_NAMES,
    response=record({"missing": _MISSING}),
    errors=(404, 422),
)
_REVERSE = Doc(
    tag=_TAG,
    summary="Make the old source a mirror of this cluster",
    description="After its topics were promoted or failed over. The old source removes the records that this cluster "
    "does not have: those from `end` to `source_end`. With `dry_run` nothing is changed. `to_here` is this cluster as "
    "the old source reaches it, by default the gateway's own address of it. `source` is the login to the old source "
    "(`security.protocol`, `sasl.…`, `ssl.…` without files), `back` the settings of its link to this cluster.",
    body=record(
        {},
        {
            "dry_run": nullable(FLAG),
            "to_here": nullable(TEXT),
            "source": _SOURCE,
            "back": nullable(mapping(TEXT)),
        },
        closed=True,
    ),
    response=record({"dry_run": FLAG, "removed": _MISSING}),
    errors=(404, 422, 502),
    example={"dry_run": True, "to_here": "east-1:9092"},
)
_VERIFY = Doc(
    tag=_TAG,
    summary="Compare mirror topics with the source",
    description="Reads both sides and compares the checksums of all batches that both have. `equal` is false if a "
    "partition differs; `complete` is false if the time was over before all partitions were compared: send fewer "
    "`topics`, or use `millstream mirror verify`. One comparison at a time. `source` is the login to the source "
    "(`security.protocol`, `sasl.…`, `ssl.…` without files).",
    body=record(
        {},
        {
            "topics": nullable(array(TEXT)),
            "source": _SOURCE,
            "timeout_s": nullable(whole("Default 60.", 1, _LONGEST_VERIFY_SECONDS)),
        },
        closed=True,
    ),
    response=record(
        {
            "equal": FLAG,
            "complete": FLAG,
            "partitions": array(
                record(
                    {
                        "topic": TEXT,
                        "partition": INT32,
                        "start": INT64,
                        "end": INT64,
                        "batches": INT64,
                        "checksum": TEXT,
                        "compacted": INT64,
                        "difference": nullable(TEXT),
                    }
                )
            ),
        }
    ),
    errors=(404, 422, 429, 502),
    example={"topics": ["orders"]},
)


class MirrorRoutes:
    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._comparing = threading.Lock()

    @property
    def _admin(self) -> MirrorAdmin:
        return MirrorAdmin(caller_cluster())

    def routes(self) -> list[BaseRoute]:
        one = "/mirrors/{mirror}"
        return [
            endpoint("GET", "/mirrors", self.every, doc=_LIST, needs=_READ),
            endpoint("POST", "/mirrors", self.create, doc=_CREATE, needs=_ALTER),
            endpoint("GET", one, self.status, doc=_GET, needs=_READ),
            endpoint("DELETE", one, self.delete, doc=_DELETE, needs=_ALTER),
            endpoint("POST", f"{one}/pause", self.pause, doc=_PAUSE, role=Role.OPERATOR, needs=_ALTER),
            endpoint("POST", f"{one}/resume", self.resume, doc=_RESUME, role=Role.OPERATOR, needs=_ALTER),
            endpoint("POST", f"{one}/promote", self.promote, doc=_PROMOTE, needs=_ALTER),
            endpoint("POST", f"{one}/failover", self.failover, doc=_FAILOVER, needs=_ALTER),
            endpoint("POST", f"{one}/reverse", self.reverse, doc=_REVERSE, needs=_ALTER),
            endpoint("POST", f"{one}/verify", self.verify, doc=_VERIFY, role=Role.OPERATOR, needs=_READ),
        ]

    def every(self, request: ApiRequest) -> Any:
        return {
            "mirrors": [
                {"name": link.name, "source": link.source, "paused": link.is_paused, "settings": link.shown()}
                for link in self._admin.links()
            ]
        }

    def create(self, request: ApiRequest) -> Any:
        document = request.document()
        known(document, "name", "from", "topics", "settings")
        for field in ("name", "from", "topics"):
            if not isinstance(document.get(field), str) or not document[field]:
                example = '{"name": "west", "from": "west-1:9092", "topics": "orders.*"}'
                raise ApiError(422, f"'{field}' must be a text", f"send {example}")
        given = _texts(document, "settings")
        name = document["name"]
        self._admin.create(name, {**given, "bootstrap.servers": document["from"], "topics": document["topics"]})
        return self._admin.status(name).document()

    def status(self, request: ApiRequest) -> Any:
        return self._admin.status(request.path("mirror")).document()

    def delete(self, request: ApiRequest) -> None:
        self._admin.delete(request.path("mirror"))

    def pause(self, request: ApiRequest) -> Any:
        self._admin.pause(request.path("mirror"))
        return self.status(request)

    def resume(self, request: ApiRequest) -> Any:
        self._admin.resume(request.path("mirror"))
        return self.status(request)

    def promote(self, request: ApiRequest) -> Any:
        return {"promoting": sorted(self._admin.begin_promotion(request.path("mirror"), _topics(request)))}

    def failover(self, request: ApiRequest) -> Any:
        missing = self._admin.failover(request.path("mirror"), _topics(request))
        return {"missing": [row.document() for row in missing]}

    def reverse(self, request: ApiRequest) -> Any:
        document = request.document()
        known(document, "dry_run", "to_here", "source", "back")
        dry_run, to_here = document.get("dry_run") or False, document.get("to_here") or self._bootstrap
        if not isinstance(dry_run, bool) or not isinstance(to_here, str):
            raise ApiError(422, "'dry_run' must be true or false, and 'to_here' a text", 'send "to_here": "HOST:PORT"')
        back = _texts(document, "back")
        for name in _OF_REVERSAL:
            if name in back:
                raise ApiError(422, f"'back' has {name}, which follows from the link", "leave it out")
        admin = self._admin
        link = admin.link(request.path("mirror"))
        # The rights of the caller count before the source is changed with other rights.
        admin.change(link.name, dict.fromkeys(link.settings), validate_only=True)
        with _source_of(link, _texts(document, "source")) as source:
            settings = {**back, "bootstrap.servers": to_here}
            removed = admin.reverse(link.name, MirrorAdmin(source), settings, dry_run=dry_run)
        return {"dry_run": dry_run, "removed": [row.document() for row in removed]}

    def verify(self, request: ApiRequest) -> Any:
        document = request.document()
        known(document, "topics", "source", "timeout_s")
        timeout_s = document.get("timeout_s")
        timeout_s = _VERIFY_SECONDS if timeout_s is None else timeout_s
        if type(timeout_s) is not int or not 1 <= timeout_s <= _LONGEST_VERIFY_SECONDS:
            raise ApiError(422, f"'timeout_s' must be an integer from 1 to {_LONGEST_VERIFY_SECONDS}")
        names, login = _names(document), _texts(document, "source")
        if not self._comparing.acquire(blocking=False):
            raise ApiError(429, "another comparison is running", "send the request again when it has ended")
        try:
            return self._compare(request.path("mirror"), names, login, time.monotonic() + timeout_s)
        finally:
            self._comparing.release()

    def _compare(self, name: str, names: list[str], login: Mapping[str, str], deadline: float) -> Any:
        admin = self._admin
        topics = [(each, admin.is_compacted(each.name)) for each in admin.comparable(name, names)]
        rows: list[Verified] = []
        is_complete = True
        with _source_of(admin.link(name), login) as source:
            try:
                for each, is_compacted in topics:
                    rows += verify_topic(admin.cluster, source, each, is_compacted=is_compacted, deadline=deadline)
            except OutOfTimeError:
                is_complete = False
        return {
            "equal": not any(row.difference for row in rows),
            "complete": is_complete,
            "partitions": [row.document() for row in rows],
        }


@contextmanager
def _source_of(link: MirrorLink, login: Mapping[str, str]) -> Iterator[Cluster]:
    """A client of the source. Errors of the source are not those of the gateway's own cluster."""
    for name in login:
        if name not in _LOGIN_SETTINGS:
            raise ApiError(422, f"'source' has {name}, which is not allowed", f"allowed: {', '.join(_LOGIN_SETTINGS)}")
    protocol = link.setting("security.protocol", "PLAINTEXT")
    if not login and protocol != "PLAINTEXT":
        raise ApiError(
            422,
            f"the source of link {link.name} needs {protocol}, and the cluster does not show the login of a link",
            'send it: {"source": {"security.protocol": …, "sasl.mechanism": …, …}}',
        )
    hint = "check the source, and 'source' of the request"
    try:
        source = Cluster(link.source, login, client_id=_CLIENT_ID, timeout_s=_SOURCE_TIMEOUT_SECONDS)
    except WireError as error:
        raise ApiError(422, f"'source': {error}", hint) from None
    with source:
        try:
            source.brokers()
        except WireError as error:
            raise ApiError(502, f"the source {link.source}: {error}", hint, code=50204) from None
        try:
            yield source
        except RefusedError as error:
            if not error.code.name.endswith("AUTHORIZATION_FAILED"):
                raise
            message = f"{error} (at this cluster, or at the source {link.source})"
            raise ApiError(403, message, "the caller needs the rights here, and 'source' those there") from None


def _texts(document: Mapping[str, Any], field: str) -> dict[str, str]:
    given = document.get(field) or {}
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        raise ApiError(422, f"'{field}' must be an object of names and texts")
    return given


def _topics(request: ApiRequest) -> list[str]:
    document = request.document()
    known(document, "topics")
    return _names(document)


def _names(document: Mapping[str, Any]) -> list[str]:
    names = document.get("topics") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ApiError(422, "'topics' must be a list of names", 'send {"topics": ["orders"]}, or {} for all')
    return names


def mirror_routes(context: GatewayContext) -> Sequence[BaseRoute]:
    return MirrorRoutes(context.options.bootstrap).routes()
