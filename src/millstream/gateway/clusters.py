"""Clusters of the console beside the first one: each has a connection, a registry, rules and an audit trail of its own.

The pages of a cluster are below /console/clusters/NAME. The HTTP API, the schema registry for programs and `/readyz`
belong to the first cluster alone. A cluster that is down delays and disturbs no other: nothing here waits for it.
"""

import logging
import threading
from dataclasses import replace

from millstream.gateway.context import GatewayContext
from millstream.gateway.http.audit import AuditTrail, report_to
from millstream.gateway.http.configuration import ClusterOptions
from millstream.gateway.identity.caller import Connection
from millstream.gateway.identity.pool import CallerPool
from millstream.raw_client import Cluster, WireError
from millstream.registry.errors import RegistryError
from millstream.registry.log import SchemaLog
from millstream.registry.registry import Registry

_log = logging.getLogger("millstream.gateway")
_REGISTRY_TIMEOUT_S = 30.0


def add_clusters(parts: GatewayContext, client_id: str) -> None:
    """Adds the further clusters of the options to the console."""
    options, first = parts.options, parts.authentication
    if not options.clusters:
        return
    first.cluster_name = options.cluster_name
    first.by_cluster[options.cluster_name] = first
    parts.registries[options.cluster_name] = parts.registry
    for other in options.clusters:
        _add(other, parts, client_id)


def _add(other: ClusterOptions, parts: GatewayContext, client_id: str) -> None:
    options, first, closing = parts.options, parts.authentication, parts.closing
    cluster = Cluster(other.bootstrap, other.settings, client_id=client_id, timeout_s=options.timeout_s)
    own = Connection(cluster)
    closing.callback(own.close)
    log = SchemaLog(cluster, options.schemas_topic)
    closing.callback(log.close)
    threading.Thread(target=_read_schemas, args=(other.name, log), name="schemas-start", daemon=True).start()
    pool = CallerPool(other.bootstrap, other.settings, options.limits, client_id=client_id, timeout_s=options.timeout_s)
    parts.lifespans.append(pool.lifespan)
    trail = AuditTrail(report_to(cluster))
    trail.start()
    closing.callback(trail.close)
    rules = first.rules
    if other.rules is not None:
        # How users sign in is the same for all clusters.
        rules = replace(other.rules, oidc=rules.oidc, tokens=rules.tokens, certificates=rules.certificates)
    first.by_cluster[other.name] = first.on_cluster(other.name, own, rules, pool, trail)
    parts.registries[other.name] = Registry(log)


def _read_schemas(name: str, log: SchemaLog) -> None:
    try:
        log.start(_REGISTRY_TIMEOUT_S, is_patient=True)
    except (RegistryError, WireError) as error:
        _log.warning("schemas_not_read cluster=%s reason=%s", name, error)
