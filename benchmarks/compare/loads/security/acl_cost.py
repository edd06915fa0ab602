"""What the authorizer with 1,000 ACLs costs small requests: two brokers of our own, one with and one without.

Both are started for this load and driven in turns of a fraction of a second, as a machine drifts by more than the few
percent that are looked for. The cost is in CPU of the broker per request, over all turns. Without TLS, where a request
costs least and a look-up weighs most. The promise is about Millstream alone, so Kafka is not run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from benchmarks.compare import wire
from benchmarks.compare.loads.small_requests import PIPELINED_IN_FLIGHT, RECORD_BYTES, drive_dialed
from benchmarks.compare.measure import Load, LoadUnavailableError, Measure, Scale
from benchmarks.compare.process_stat import cpu_seconds
from benchmarks.compare.secured_target import CLIENT_NAME, MUTUAL, SecuredFactory, SecuredTarget, client_settings
from benchmarks.compare.target import MillstreamTarget, Target, start
from benchmarks.compare.topic import temporary_topic

ACLS = 1_000
WITH_ACLS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": f"User:CN={CLIENT_NAME}",
}
_TURNS = 9
_FULL_SECONDS_PER_TURN = 0.8
_PROMISED_PERCENT = 3.0
_ANONYMOUS = "User:ANONYMOUS"


class AclCost(Load):
    name: ClassVar[str] = "acl-cost"
    title: ClassVar[str] = f"{ACLS:,} ACLs"
    measures: Sequence[Measure] = (
        Measure(
            "cpu",
            f"CPU that {ACLS:,} ACLs add to a small request",
            "%",
            "lower",
            at_most=_PROMISED_PERCENT,
            comparable=False,
        ),
        Measure("without", "small requests, 5 in flight, no authorizer", "req/s", "higher"),
        Measure("with", f"small requests, 5 in flight, {ACLS:,} ACLs", "req/s", "higher"),
    )

    def __init__(self, without_acls: SecuredFactory, with_acls: SecuredFactory) -> None:
        self._without_acls, self._with_acls = without_acls, with_acls

    def run(self, target: Target, scale: Scale) -> dict[str, float]:
        if target.name != MillstreamTarget.name:
            raise LoadUnavailableError("Millstream alone, with and without an authorizer")
        seconds = scale.seconds(_FULL_SECONDS_PER_TURN, least=0.1)
        with (
            _driver(self._without_acls(target.name), acls=0) as without,
            _driver(self._with_acls(target.name), acls=ACLS) as having,
        ):
            drivers = (without, having)
            for driver in drivers:
                driver.drive(seconds)  # a warm-up
            found = {driver: _Spent() for driver in drivers}
            for turn in range(max(int(_TURNS * min(scale.factor, 1.0)), 2)):
                for driver in drivers if turn % 2 else drivers[::-1]:
                    found[driver].add(driver.drive(seconds))
        cost = found[having].cpu_per_request / found[without].cpu_per_request - 1
        return {"cpu": cost * 100, "without": found[without].rate, "with": found[having].rate}


@dataclass
class _Spent:
    requests: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0

    def add(self, other: _Spent) -> None:
        self.requests += other.requests
        self.seconds += other.seconds
        self.cpu_s += other.cpu_s

    @property
    def rate(self) -> float:
        return self.requests / self.seconds

    @property
    def cpu_per_request(self) -> float:
        return max(self.cpu_s, 0.01) / self.requests  # a tick of the clock at least


class _Driver:
    def __init__(self, target: Target, topic: str) -> None:
        self._target, self._topic = target, topic
        self._request = wire.produce_request(topic, 0, wire.record_batch([b"x" * RECORD_BYTES]))

    def drive(self, seconds: float) -> _Spent:
        dial = partial(wire.connect, self._target.bootstrap)
        before = cpu_seconds(self._target.pid)
        responses, elapsed = drive_dialed(dial, self._request, self._topic, PIPELINED_IN_FLIGHT, seconds)
        return _Spent(responses, elapsed, cpu_seconds(self._target.pid) - before)


@contextmanager
def _driver(target: SecuredTarget, *, acls: int) -> Iterator[_Driver]:
    """A broker of its own with a topic."""
    with ExitStack() as running:
        running.callback(target.stop)
        start(target)
        if acls:
            _add_acls(target, acls)
        yield _Driver(target, running.enter_context(temporary_topic(target, 1, 10 << 20)))


def _add_acls(target: SecuredTarget, count: int) -> None:
    """What the load itself needs, and the rest for other topics: half of them of the same principal."""
    rules = [
        _allow(ResourceType.TOPIC, "compare-", ResourcePatternType.PREFIXED, _ANONYMOUS, AclOperation.ALL),
        _allow(ResourceType.BROKER, "kafka-cluster", ResourcePatternType.LITERAL, _ANONYMOUS, AclOperation.ALL),
    ]
    for number in range(count - len(rules)):
        kind = ResourcePatternType.PREFIXED if number % 4 < 2 else ResourcePatternType.LITERAL
        principal = _ANONYMOUS if number % 2 else f"User:user-{number}"
        rules.append(_allow(ResourceType.TOPIC, f"other-{number}", kind, principal, AclOperation.WRITE))
    admin = AdminClient({**client_settings(target, MUTUAL)})
    for future in admin.create_acls(rules).values():
        future.result(timeout=60)


def _allow(
    resource: ResourceType, name: str, kind: ResourcePatternType, principal: str, operation: AclOperation
) -> AclBinding:
    return AclBinding(resource, name, kind, principal, "*", operation, AclPermissionType.ALLOW)
