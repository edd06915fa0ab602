"""Confluent's REST Proxy, version 3, at /v3: clusters, brokers, topics, settings, consumer groups, and records."""

from collections.abc import Callable

from starlette.routing import BaseRoute

from millstream.gateway.admin.groups import GroupAdmin
from millstream.gateway.admin.topics import TopicAdmin
from millstream.gateway.http.asked import Asked
from millstream.gateway.http.parts import GatewayParts
from millstream.gateway.produce.routes import Producing
from millstream.gateway.rest_v3.configs import ConfigRoutes
from millstream.gateway.rest_v3.groups import GroupRoutes
from millstream.gateway.rest_v3.records import RecordRoutes
from millstream.gateway.rest_v3.replicas import ReplicaRoutes
from millstream.gateway.rest_v3.resources import Links, not_found
from millstream.gateway.rest_v3.topics import TopicRoutes


def v3_routes(parts: GatewayParts, producing: Producing) -> list[BaseRoute]:
    admin = TopicAdmin(parts.cluster)
    links = _links(admin)
    return [
        *ConfigRoutes(admin, links).routes(),
        *ReplicaRoutes(parts.cluster, admin, links).routes(),
        *TopicRoutes(admin, links).routes(),
        *GroupRoutes(GroupAdmin(parts.cluster), links).routes(),
        *RecordRoutes(producing, parts.registry, links).routes(),
    ]


def _links(admin: TopicAdmin) -> Callable[[Asked], Links]:
    known: list[str] = []

    def links(asked: Asked) -> Links:
        """Of the cluster that the path names, which must be ours: it has one id for ever, so it is asked once."""
        if not known:
            known.append(admin.cluster().cluster_id)
        if asked.path("cluster_id") != known[0]:
            raise not_found(f"Cluster {asked.path('cluster_id')}", f"GET /v3/clusters: it is {known[0]}")
        return Links(asked, known[0])

    return links
