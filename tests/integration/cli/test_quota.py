"""`millstream quota` against a real broker."""

import shlex
from collections.abc import Iterator

import pytest

from millstream.testing import EmbeddedBroker
from tests.integration.cli.conftest import Run
from tests.repository import REPOSITORY


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture
def run(offline: Run, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("MILLSTREAM_BOOTSTRAP", broker.bootstrap_servers)
    return offline


def test_set_list_and_remove(run: Run) -> None:
    assert run("quota", "list").code == 0
    run("quota", "set", "producer_byte_rate=10MB", "request_percentage=50", "--user", "alice")
    run("quota", "set", "consumer_byte_rate=1000", "--user", "<default>", "--client-id", "<default>")
    run("quota", "set", "connection_creation_rate=20", "--ip", "192.0.2.7")
    found = run("quota", "list", "--json").json()
    assert {
        "entity": {"user": "alice"},
        "quotas": {"producer_byte_rate": 10485760.0, "request_percentage": 50.0},
    } in found
    assert {"entity": {"client-id": None, "user": None}, "quotas": {"consumer_byte_rate": 1000.0}} in found
    table = run("quota", "list", "--user", "alice").out
    assert "user=alice" in table and "10485760" in table and "192.0.2.7" not in table
    run("quota", "remove", "request_percentage", "--user", "alice")
    run("quota", "remove", "--user", "alice")
    run("quota", "remove", "--user", "<default>", "--client-id", "<default>")
    run("quota", "remove", "--ip", "192.0.2.7")
    assert run("quota", "list", "--json").json() == []


def test_a_dry_run_changes_nothing(run: Run) -> None:
    assert run("quota", "set", "producer_byte_rate=1", "--user", "alice", "--dry-run").code == 0
    assert run("quota", "list", "--json").json() == []


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("set", "producer_byte_rate=1"), 2, "--user NAME"),
        (("set", "producer_bytes_rate=1", "--user", "a"), 2, "did you mean 'producer_byte_rate'"),
        (("set", "producer_byte_rate=fast", "--user", "a"), 2, "write a number"),
        (("set", "producer_byte_rate=1", "--user", "a", "--ip", "192.0.2.1"), 2, "cannot be combined"),
        (("set", "request_percentage=-1", "--user", "a"), 1, "must be greater than 0"),
        (("set", "connection_creation_rate=1", "--ip", "nowhere"), 1, "not a valid IP address"),
        (("remove", "--user", "nobody"), 4, "has no quotas"),
    ],
)
def test_mistakes_are_explained(run: Run, arguments: tuple[str, ...], code: int, says: str) -> None:
    failed = run("quota", *arguments)
    assert failed.code == code, failed.err
    assert says in failed.err


def test_the_examples_of_the_documentation_run(run: Run) -> None:
    text = (REPOSITORY / "docs" / "quotas.md").read_text()
    examples = [shlex.split(line)[1:] for line in text.splitlines() if line.startswith("millstream quota")]
    assert len(examples) >= 5
    for arguments in examples:
        done = run(*arguments)
        assert done.code == 0, (arguments, done.err)
    run("quota", "remove", "--user", "alice")
    assert run("quota", "list", "--json").json() == []
