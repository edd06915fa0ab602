"""A broker whose only listener needs SASL, with all mechanisms."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from millstream.node.security.core.scram import SCRAM_MECHANISMS
from millstream.testing import EmbeddedBroker
from tests.sasl import PASSWORD, TOKEN_SECRET, Issuer, plain, sasl_settings, upsertion
from tests.wire import Wire


@pytest.fixture(scope="package")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    made = Issuer(tmp_path_factory.mktemp("issuer") / "keys.json")
    made.rotate("first")
    return made


@pytest.fixture(scope="package")
def broker(issuer: Issuer) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(sasl_settings(issuer)) as running:
        yield running
        log = running.log_file.read_text()
        assert "handler_failed" not in log and "Traceback" not in log, log[-3000:]
        for secret in (PASSWORD, "admin-secret-1", TOKEN_SECRET, "scram-secret-1", "eyJ"):
            assert secret not in log, "a secret is in the log"


@pytest.fixture
def wire(broker: EmbeddedBroker) -> Iterator[Wire]:
    with Wire(broker.bootstrap_servers) as connected:
        yield connected


Connect = Callable[[], Wire]


@pytest.fixture
def connect(broker: EmbeddedBroker) -> Iterator[Connect]:
    opened: list[Wire] = []

    def new() -> Wire:
        opened.append(Wire(broker.bootstrap_servers))
        return opened[-1]

    yield new
    for each in opened:
        each.close()


@pytest.fixture(scope="package")
def scram_user(broker: EmbeddedBroker) -> str:
    """A user with both mechanisms and the password `scram-secret-1`."""
    with Wire(broker.bootstrap_servers) as admin:
        plain(admin)
        rows = [upsertion("sam", "scram-secret-1", mechanism) for mechanism in SCRAM_MECHANISMS]
        response = admin.call("alter_user_scram_credentials", 0, deletions=[], upsertions=rows)
        assert [(row.user, row.error_code) for row in response.results] == [("sam", 0)]
    return "sam"
