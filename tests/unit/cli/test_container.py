"""The settings of a container, by the rules of the image apache/kafka."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from millstream.cli.container import (
    DATA,
    DEFAULT_CLUSTER_ID,
    SINGLE_NODE,
    health,
    run,
    setting_name,
    settings_of,
    write_settings,
)
from millstream.config.broker_config import BrokerConfig
from millstream.config.loading import load_broker_config
from millstream.config.setting import ConfigError

FILES = {
    "/etc/kafka/secrets/kafka.keystore.p12": "binary",
    "/etc/kafka/secrets/kafka.truststore.p12": "binary",
    "/etc/kafka/secrets/keystore_creds": "key-store-secret\n",
    "/etc/kafka/secrets/key_creds": "key-secret\n",
    "/etc/kafka/secrets/truststore_creds": "trust-secret\n",
    "/etc/kafka/secrets/server_jaas.conf": """
        // The users of clients
        KafkaServer {
          org.apache.kafka.common.security.plain.PlainLoginModule required
            username="admin" password="semi;colon" user_admin="semi;colon";
          org.apache.kafka.common.security.scram.ScramLoginModule required;
        };
        KafkaClient { x.PlainLoginModule required; };
    """,
}


def read(path: str) -> str:
    if path not in FILES:
        raise ConfigError(f"{path}: No such file or directory")
    return FILES[path]


def settings(environment: Mapping[str, str], mounted: Mapping[str, str] | None = None) -> dict[str, str]:
    return settings_of(environment, mounted or {}, read)


def loaded(found: Mapping[str, str], directory: Path) -> BrokerConfig:
    return load_broker_config(file=write_settings(found, [str(directory)]))


@pytest.mark.parametrize(
    ("variable", "name"),
    [
        ("KAFKA_ABC_DEF", "abc.def"),
        ("KAFKA_ABC__DEF", "abc_def"),
        ("KAFKA_ABC___DEF", "abc-def"),
        ("KAFKA_LISTENER_NAME_SSL___INTERNAL_SSL_CLIENT_AUTH", "listener.name.ssl-internal.ssl.client.auth"),
    ],
)
def test_variables_become_names_of_settings(variable: str, name: str) -> None:
    assert setting_name(variable) == name


def test_a_container_without_settings_is_a_single_node(tmp_path: Path) -> None:
    found = settings({"PATH": "/bin", "KAFKA_HEAP_OPTS": "-Xmx1g", "KAFKA_VERSION": "4.3.1"})
    assert {name: found[name] for name in SINGLE_NODE} == SINGLE_NODE
    assert (found["log.dirs"], found["cluster.id"]) == (DATA, DEFAULT_CLUSTER_ID)
    config = loaded(found, tmp_path)
    assert config.is_broker and config.is_controller and not config.unknown


def test_variables_replace_the_defaults_and_override_the_mounted_file() -> None:
    mounted = {"node.id": "7", "log.dirs": "/data", "num.partitions": "3"}
    found = settings({"KAFKA_NUM_PARTITIONS": "5", "CLUSTER_ID": "4L6g3nShT-eMCtK--X86sw"}, mounted)
    assert (found["node.id"], found["log.dirs"], found["num.partitions"]) == ("7", "/data", "5")
    assert found["cluster.id"] == "4L6g3nShT-eMCtK--X86sw"
    assert "process.roles" not in found


def test_listeners_come_from_the_advertised_ones() -> None:
    found = settings({"KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://kafka-1:19092,HOST://localhost:9092"})
    assert found["listeners"] == "PLAINTEXT://0.0.0.0:19092,HOST://0.0.0.0:9092"


def test_a_controller_advertises_no_listeners_for_clients() -> None:
    roles = {"KAFKA_PROCESS_ROLES": "controller"}
    assert "advertised.listeners" not in settings({**roles, "KAFKA_ADVERTISED_LISTENERS": ""})
    with pytest.raises(ConfigError, match="KAFKA_ADVERTISED_LISTENERS is not for"):
        settings({**roles, "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://kafka-1:9092"})


def test_stores_and_passwords_are_in_the_directory_of_secrets() -> None:
    variables = {
        "KAFKA_ADVERTISED_LISTENERS": "SSL://kafka-1:9093",
        "KAFKA_SSL_KEYSTORE_FILENAME": "kafka.keystore.p12",
        "KAFKA_SSL_KEYSTORE_CREDENTIALS": "keystore_creds",
        "KAFKA_SSL_KEY_CREDENTIALS": "key_creds",
        "KAFKA_SSL_TRUSTSTORE_FILENAME": "kafka.truststore.p12",
        "KAFKA_SSL_TRUSTSTORE_CREDENTIALS": "truststore_creds",
        "KAFKA_SSL_ENDPOINT_IDENTIFICATION_ALGORITHM": "",
    }
    found = settings(variables)
    assert found["ssl.keystore.location"] == "/etc/kafka/secrets/kafka.keystore.p12"
    assert found["ssl.keystore.password"] == "key-store-secret"
    assert found["ssl.key.password"] == "key-secret"
    assert found["ssl.truststore.password"] == "trust-secret"
    assert found["ssl.endpoint.identification.algorithm"] == ""
    assert not [name for name in found if name.endswith(("filename", "credentials"))]
    with pytest.raises(ConfigError, match=r"/etc/kafka/secrets/missing\.p12: No such file"):
        settings({**variables, "KAFKA_SSL_KEYSTORE_FILENAME": "missing.p12"})


def test_login_modules_of_the_jaas_file(tmp_path: Path) -> None:
    variables = {
        "KAFKA_LISTENERS": "SASL_PLAINTEXT://:9092,CONTROLLER://:9093",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "KAFKA_OPTS": "-Xlog -Djava.security.auth.login.config=/etc/kafka/secrets/server_jaas.conf",
    }
    found = settings(variables)
    jaas = found["listener.name.sasl_plaintext.plain.sasl.jaas.config"]
    assert jaas.endswith('user_admin="semi;colon";') and "\n" not in jaas
    assert "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config" in found
    with pytest.raises(ConfigError, match="has no section KafkaServer"):
        settings({**variables, "KAFKA_OPTS": "-Djava.security.auth.login.config=/etc/kafka/secrets/key_creds"})


def test_a_pod_of_a_stateful_set() -> None:
    pod = {"MILLSTREAM_STATEFULSET_SERVICE": "nodes.shop.svc", "MILLSTREAM_STATEFULSET_CONTROLLERS": "2"}
    first = settings({**pod, "HOSTNAME": "log-1", "KAFKA_NUM_PARTITIONS": "6"})
    assert (first["node.id"], first["process.roles"]) == ("1", "broker,controller")
    assert first["controller.quorum.voters"] == "0@log-0.nodes.shop.svc:9093,1@log-1.nodes.shop.svc:9093"
    assert "CONTROLLER://log-1.nodes.shop.svc:9093" in first["advertised.listeners"]
    later = settings({**pod, "HOSTNAME": "log-2"})
    assert (later["node.id"], later["process.roles"]) == ("2", "broker")
    assert "CONTROLLER" not in later["listeners"]
    with pytest.raises(ConfigError, match="ends with its number"):
        settings({**pod, "HOSTNAME": "log"})


def test_values_are_the_same_in_the_file(tmp_path: Path) -> None:
    text = ' begins with a space, has \\ and "quotes" and\ntwo lines = # !'
    path = Path(write_settings({**SINGLE_NODE, "log.dirs": DATA, "super.users": text}, [str(tmp_path)]))
    assert path.stat().st_mode & 0o777 == 0o600
    from millstream.common.properties import parse_properties

    assert {each.name: each.value for each in parse_properties(path.read_text(), "file")}["super.users"] == text
    write_settings(SINGLE_NODE, [str(tmp_path / "missing"), str(tmp_path)])  # written again
    with pytest.raises(ConfigError, match="mount a tmpfs"):
        write_settings(SINGLE_NODE, [str(tmp_path / "missing")])


def test_wrong_use_of_the_container_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLSTREAM_RUN_DIRECTORY", str(tmp_path))
    assert run(["--listen", "0.0.0.0:9092"]) == 1
    assert "give settings as variables" in capsys.readouterr().err
    assert health() == 1
    assert "has not started" in capsys.readouterr().err
    assert run(["--wait-to-stop", "soon"]) == 1
    assert run(["--wait-to-stop", "0"]) == 0
    assert "stopped anyway" in capsys.readouterr().err
