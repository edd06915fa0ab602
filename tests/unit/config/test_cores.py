"""The nodes of `serve --cores`: ids, folders, ports and settings."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.config.broker_config import BrokerConfig
from millstream.config.cores import allot_ports, check_cores, core_config, core_id, parse_cores
from millstream.config.loading import load_broker_config
from millstream.config.setting import ConfigError
from millstream.config.table import node, sasl


def nodes(base: BrokerConfig, cores: int) -> list[BrokerConfig]:
    check_cores(base, cores)
    free = count(30_000)
    ports = allot_ports(base, cores, lambda: next(free))
    return [core_config(base, index, ports, "here.example") for index in range(cores)]


def load(*settings: str) -> BrokerConfig:
    return load_broker_config(overrides=settings)


@pytest.mark.parametrize(("text", "cores"), [("1", 1), (" 7 ", 7), ("64", 64), ("auto", 6), ("AUTO", 6)])
def test_cores_are_parsed(text: str, cores: int) -> None:
    assert parse_cores(text, 6) == cores


@pytest.mark.parametrize("text", ["0", "-1", "65", "two", "", "1.5", "9999999999999"])
def test_wrong_numbers_of_cores_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write a number from 1 to 64, or auto"):
        parse_cores(text, 6)


def test_the_nodes_of_a_single_machine() -> None:
    first, second, third = nodes(load("log.dirs=/d", "listeners=PLAINTEXT://127.0.0.1:9092"), 3)
    assert [each.node_id for each in (first, second, third)] == [1, 1001, 2001]
    assert [each.data_dir for each in (first, second, third)] == ["/d", "/d/cores/2", "/d/cores/3"]
    assert [each.listeners[0].port for each in (first, second, third)] == [9092, 9093, 9094]
    assert first.is_controller and first.is_alone and not second.is_controller
    assert [str(each) for each in first.controller_listeners] == ["CONTROLLER://127.0.0.1:30000"]
    assert second.bootstrap_servers == (("127.0.0.1", 30000),)
    assert (first[node.MACHINE_ID], second[node.MACHINE_ID]) == (None, "machine-1")


def test_ports_that_the_file_names_are_left_out() -> None:
    base = load(
        "listeners=PLAINTEXT://:9092,CONTROLLER://:9093,INTERNAL://:9095",
        "advertised.listeners=PLAINTEXT://one.example:19092,CONTROLLER://one.example:9093,INTERNAL://one.example:9095",
        "controller.listener.names=CONTROLLER",
        "controller.quorum.voters=1@one.example:9093,2@two.example:9093",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,INTERNAL:PLAINTEXT",
        "inter.broker.listener.name=INTERNAL",
        "broker.rack=a",
    )
    first, second, third = nodes(base, 3)
    assert [[each.port for each in config.listeners] for config in (first, second, third)] == [
        [9092, 9095],
        [9094, 9096],
        [9097, 9098],
    ]
    assert [str(each) for each in second.advertised_listeners] == [
        "PLAINTEXT://one.example:19094",
        "INTERNAL://one.example:9096",
    ]
    assert second.voters == base.voters and not second.controller_listeners
    assert second[node.BROKER_RACK] == "a"


@given(st.integers(1, 12), st.integers(1, 12), st.lists(st.integers(1024, 1040), min_size=1, max_size=4, unique=True))
def test_ports_are_never_given_twice_and_stay_as_they_are(few: int, many: int, ports: list[int]) -> None:
    few, many = sorted((few, many))
    names = [f"L{number}" for number in range(len(ports))]
    base = load(
        "listeners=" + ",".join(f"{name}://127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)),
        "listener.security.protocol.map=" + ",".join(f"{name}:PLAINTEXT" for name in names),
        "inter.broker.listener.name=L0",
    )
    free = count(30_000)
    larger = allot_ports(base, many, lambda: next(free))
    free = count(30_000)
    smaller = allot_ports(base, few, lambda: next(free))
    used = [port for own in larger for port in own.values()]
    assert len(set(used)) == len(used)
    for one, other in zip(smaller, larger, strict=False):
        assert {name: one[name] for name in names} == {name: other[name] for name in names}


def test_the_listener_between_nodes_is_secured_as_that_between_brokers() -> None:
    jaas = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="b" password="secret";'
    base = load(
        "listeners=SASL_SSL://:9092",
        "advertised.listeners=SASL_SSL://one.example:9092",
        "security.inter.broker.protocol=SASL_SSL",
        "sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512",
        "sasl.enabled.mechanisms=SCRAM-SHA-512",
        f"listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config={jaas}",
    )
    first, second = nodes(base, 2)
    (listener,) = first.controller_listeners
    assert (listener.security_protocol, listener.host) == ("SASL_SSL", "")
    assert second.bootstrap_servers == (("one.example", 30000),)
    assert second[sasl.SASL_MECHANISM_CONTROLLER_PROTOCOL] == "SCRAM-SHA-512"
    own = second.listener("CONTROLLER").mechanism("SCRAM-SHA-512").own(sasl.SASL_JAAS_CONFIG)
    assert own is not None and "secret" in str(own)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["node.id=1000"], "node.id=1000 must be below 1000"),
        (
            [
                "process.roles=controller",
                "listeners=CONTROLLER://127.0.0.1:9093",
                "controller.listener.names=CONTROLLER",
                "controller.quorum.voters=1@127.0.0.1:9093",
            ],
            "process.roles=controller uses one core",
        ),
        (
            ["listeners=PLAINTEXT://127.0.0.1:0", "advertised.listeners=PLAINTEXT://a.example:9092"],
            "listeners has port 0",
        ),
        (["listeners=PLAINTEXT://127.0.0.1:65535"], "use a lower port"),
    ],
)
def test_configurations_that_cannot_have_several_nodes(settings: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        nodes(load(*settings), 2)


def test_ids_do_not_depend_on_the_number_of_nodes() -> None:
    base = load("node.id=7", "millstream.machine.id=rack3-7")
    assert [core_id(base, index) for index in range(3)] == [7, 1007, 2007]
    assert nodes(base, 2)[1][node.MACHINE_ID] == "rack3-7"
