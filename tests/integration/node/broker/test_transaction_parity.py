"""Responses about transactions have the fields of Apache Kafka 4.3.1. No Kafka is needed for this.

What Kafka said is in `transaction_parity.golden`. To record it again, start Kafka with the settings of
`transaction_parity` (tools/apache_kafka.py), and

    python -m tests.integration.node.broker.transaction_parity HOST:PORT >
    tests/integration/node/broker/transaction_parity.golden

Not compared, for Millstream does it otherwise on purpose:

- A batch of a transaction with acks=1 is refused; one without a transactional id is refused alone, and not with all
  that comes in the same request.
- KeepPreparedTxn works; Kafka refuses it as unsupported.
- Kafka never responds to an AddPartitionsToTxn without transactions, and says UNKNOWN_SERVER_ERROR to markers of no
  producer and to unknown isolation levels.
- A marker of a coordinator epoch that no coordinator has is refused: once written, it would lock out the real one.
- Of a batch with many records without a key the first thousand are named; Kafka names all.
- Texts, the order of rows, and the log start and time of batches that are refused or repeated.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.testing import EmbeddedBroker
from tests.integration.node.broker.transaction_parity import SETTINGS, Script, run, set_version
from tests.integration.node.broker.transaction_parity_scripts import SCRIPTS
from tests.waiting import until
from tests.wire import Wire

_GOLDEN = Path(__file__).with_name("transaction_parity.golden")


def golden() -> dict[tuple[str, int], list[str]]:
    """What Kafka responded, by script and transaction version."""
    found: dict[tuple[str, int], list[str]] = {}
    lines: list[str] = []
    for line in _GOLDEN.read_text().splitlines():
        if line.startswith("== "):
            _, name, version = line.split()
            lines = found[name, int(version)] = []
        else:
            lines.append(line)
    return found


@pytest.fixture(scope="module")
def told_by_kafka() -> dict[tuple[str, int], list[str]]:
    return golden()


@pytest.fixture(scope="module")
def settled_broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(SETTINGS) as running:
        with Wire(running.bootstrap_servers) as wire:
            # The first id is 0, which responses also have where there is no producer: no script should get it, whether
            # it runs first, alone, or after others.
            asked = {"transactional_id": None, "transaction_timeout_ms": 1000, "producer_id": -1, "producer_epoch": -1}
            until(lambda: wire.call("init_producer_id", 4, **asked).error_code == 0)
        yield running


@pytest.mark.parametrize(
    ("version", "script"),
    [(version, script) for version, scripts in SCRIPTS.items() for script in scripts],
    ids=lambda value: value if isinstance(value, int) else value.__name__,
)
def test_its_responses_are_those_of_kafka(
    settled_broker: EmbeddedBroker,
    told_by_kafka: dict[tuple[str, int], list[str]],
    version: int,
    script: Script,
) -> None:
    name = script.__name__
    with Wire(settled_broker.bootstrap_servers) as wire:
        set_version(wire, version)
    said = run(settled_broker.bootstrap_servers, name, script, version)
    assert said == told_by_kafka[name, version]


def test_all_that_kafka_said_is_asked(told_by_kafka: dict[tuple[str, int], list[str]]) -> None:
    assert set(told_by_kafka) == {
        (script.__name__, version) for version, scripts in SCRIPTS.items() for script in scripts
    }
