"""The loads of `--only security`: what TLS, SASL and ACLs cost, on targets with listeners of each kind.

What is promised, beside Kafka with the same settings: at least its throughput and small requests, at most its CPU and
p99; ACLs at most 3 % of small requests.
"""

from __future__ import annotations

from benchmarks.compare.loads.security.acl_cost import AclCost
from benchmarks.compare.loads.security.handshakes import Handshakes
from benchmarks.compare.loads.security.tls_latency import TlsLatency
from benchmarks.compare.loads.security.tls_librdkafka import TlsConsume, TlsProduce
from benchmarks.compare.loads.security.tls_raw_transfer import TlsRawTransfer
from benchmarks.compare.loads.security.tls_small_requests import TlsSmallRequests
from benchmarks.compare.measure import Load
from benchmarks.compare.secured_target import SecuredFactory

SECURITY_LOAD_NAMES = (
    TlsProduce.name,
    TlsConsume.name,
    TlsRawTransfer.name,
    TlsSmallRequests.name,
    TlsLatency.name,
    Handshakes.name,
    AclCost.name,
)


def build_security_loads(fresh_target: SecuredFactory, with_acls: SecuredFactory) -> list[Load]:
    """`with_acls` makes targets whose authorizer is on."""
    return [
        TlsProduce(),
        TlsConsume(),
        TlsRawTransfer(),
        TlsSmallRequests(),
        TlsLatency(),
        Handshakes(),
        AclCost(fresh_target, with_acls),
    ]
