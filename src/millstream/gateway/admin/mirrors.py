"""Mirror links over HTTP: list, create, status, pause, resume, promote, fail over, delete.

Comparing both sides and reversing a link need a connection to the source, which the gateway does not have: they are
commands (`millstream mirror`).
"""

from collections.abc import Sequence
from typing import Any

from starlette.routing import BaseRoute

from millstream.access.roles import Role
from millstream.admin.mirrors import MirrorAdmin
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
)
from millstream.gateway.identity.caller import caller_cluster
from millstream.gateway.identity.missing_acl import Needs

_TAG = "Mirrors"
_ALTER = Needs(topic="AlterConfigs", cluster="AlterConfigs")
_READ = Needs(topic="DescribeConfigs", cluster="DescribeConfigs")
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
_FAILOVER = Doc(
    tag=_TAG,
    summary="Promote mirror topics now",
    description="Also without the source. The response has what is missing in each partition; -1 if it is not known.",
    body=_NAMES,
    response=record(
        {
            "missing": array(
                record({"topic": TEXT, "partition": INT32, "end": INT64, "source_end": INT64, "records": INT64})
            )
        }
    ),
    errors=(404, 422),
)


class MirrorRoutes:
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
        ]

    def every(self, asked: ApiRequest) -> Any:
        return {
            "mirrors": [
                {"name": link.name, "source": link.source, "paused": link.is_paused, "settings": link.shown()}
                for link in self._admin.links()
            ]
        }

    def create(self, asked: ApiRequest) -> Any:
        document = asked.document()
        known(document, "name", "from", "topics", "settings")
        for field in ("name", "from", "topics"):
            if not isinstance(document.get(field), str) or not document[field]:
                example = '{"name": "west", "from": "west-1:9092", "topics": "orders.*"}'
                raise ApiError(422, f"'{field}' must be a text", f"send {example}")
        given = document.get("settings") or {}
        if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
            raise ApiError(422, "'settings' must be an object of names and texts")
        name = document["name"]
        self._admin.create(name, {**given, "bootstrap.servers": document["from"], "topics": document["topics"]})
        return self._admin.status(name).document()

    def status(self, asked: ApiRequest) -> Any:
        return self._admin.status(asked.path("mirror")).document()

    def delete(self, asked: ApiRequest) -> None:
        self._admin.delete(asked.path("mirror"))

    def pause(self, asked: ApiRequest) -> Any:
        self._admin.pause(asked.path("mirror"))
        return self.status(asked)

    def resume(self, asked: ApiRequest) -> Any:
        self._admin.resume(asked.path("mirror"))
        return self.status(asked)

    def promote(self, asked: ApiRequest) -> Any:
        return {"promoting": sorted(self._admin.begin_promotion(asked.path("mirror"), _topics(asked)))}

    def failover(self, asked: ApiRequest) -> Any:
        missing = self._admin.failover(asked.path("mirror"), _topics(asked))
        return {
            "missing": [
                {
                    "topic": row.topic,
                    "partition": row.partition,
                    "end": row.end,
                    "source_end": row.source_end,
                    "records": row.records,
                }
                for row in missing
            ]
        }


def _topics(asked: ApiRequest) -> list[str]:
    document = asked.document()
    known(document, "topics")
    names = document.get("topics") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ApiError(422, "'topics' must be a list of names", 'send {"topics": ["orders"]}, or {} for all')
    return names


def mirror_routes(context: GatewayContext) -> Sequence[BaseRoute]:
    return MirrorRoutes().routes()
