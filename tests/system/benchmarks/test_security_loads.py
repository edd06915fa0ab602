"""Every load with TLS, SASL or ACLs, tiny, so that none rots. What a load measures is never asserted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial

import pytest

from benchmarks.compare.loads.security import SECURITY_LOAD_NAMES, build_security_loads
from benchmarks.compare.loads.security.acl_cost import WITH_ACLS, AclCost
from benchmarks.compare.measure import Load, LoadUnavailableError, Scale
from benchmarks.compare.secured_target import SecuredKafka, SecuredMillstream, SecuredTarget, start_secured
from tools import apache_kafka

_TINY = Scale(0.0005)


@pytest.fixture(scope="session")
def security_loads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Load]:
    def fresh(name: str, extra: Mapping[str, str] | None = None) -> SecuredTarget:
        return SecuredMillstream(tmp_path_factory.mktemp(name), extra)

    return {load.name: load for load in build_security_loads(fresh, partial(fresh, extra=WITH_ACLS))}


@pytest.fixture(scope="session", params=["millstream", pytest.param("kafka", marks=pytest.mark.slow)])
def secured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredTarget]:
    directory = tmp_path_factory.mktemp(f"{request.param}-secured")
    distribution = apache_kafka.installed()
    target: SecuredTarget
    if request.param == SecuredMillstream.name:
        target = SecuredMillstream(directory)
    elif distribution is not None:
        target = SecuredKafka(directory, distribution)
    else:
        pytest.skip("Apache Kafka is not in .cache (python tools/apache_kafka.py fetches it)")
    try:
        start_secured(target)
        yield target
    finally:
        target.stop()


@pytest.mark.parametrize("name", SECURITY_LOAD_NAMES)
def test_load_yields_every_measure_it_names(name: str, secured: SecuredTarget, security_loads: dict[str, Load]) -> None:
    load = security_loads[name]
    if name == AclCost.name and secured.name != SecuredMillstream.name:
        with pytest.raises(LoadUnavailableError):
            load.run(secured, _TINY)
        return

    found = load.run(secured, _TINY)

    measures = {measure.key: measure for measure in load.measures}
    assert set(found) == set(measures)
    assert all(math.isfinite(value) for value in found.values())
    assert all(value >= 0 or not measures[key].comparable for key, value in found.items())


def test_names_match_the_loads(security_loads: dict[str, Load]) -> None:
    assert tuple(security_loads) == SECURITY_LOAD_NAMES
