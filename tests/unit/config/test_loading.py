"""Files and `--set` words to a BrokerConfig: what starts, what warns, what refuses with one clear line."""

from pathlib import Path

import pytest

from millstream.config.broker_config import BrokerConfig
from millstream.config.loading import load_broker_config
from millstream.config.setting import ConfigError
from millstream.config.table import log, network, node

STOCK = """\
# The settings of config/server.properties as Kafka 4 ships it.
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,\\
    SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


def load(tmp_path: Path, text: str, *overrides: str) -> BrokerConfig:
    path = tmp_path / "server.properties"
    path.write_text(text)
    return load_broker_config(file=str(path), overrides=overrides)


def refusal(tmp_path: Path, text: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, text, *overrides)
    message = str(refused.value)
    assert "\n" not in message
    return message.replace(f"{tmp_path}/server.properties", "FILE")


def test_a_stock_file_loads_without_noise(tmp_path: Path) -> None:
    config = load(tmp_path, STOCK)
    assert config.unknown == ()
    assert config.warnings == ()
    assert config.node_id == 1
    assert config.data_dir == "/tmp/kraft-combined-logs"
    assert [str(listener) for listener in config.listeners] == ["PLAINTEXT://:9092"]
    assert [str(listener) for listener in config.controller_listeners] == ["CONTROLLER://:9093"]
    assert config[network.SOCKET_REQUEST_MAX_BYTES] == 104857600
    assert config.without_effect == (
        "settings without effect (docs/settings.md has the reasons): num.recovery.threads.per.data.dir, "
        "share.coordinator.state.topic.min.isr",
    )


def test_what_is_set_and_changes_nothing_is_said(tmp_path: Path) -> None:
    assert load(tmp_path, "num.io.threads=16\n").without_effect == (
        "num.io.threads has no effect: the broker runs on one event loop with a small thread pool, without a JVM",
    )
    assert load(tmp_path, "num.io.threads=8\n").without_effect == ()


def test_nothing_at_all_is_a_broker_on_loopback() -> None:
    config = load_broker_config()
    assert [str(listener) for listener in config.listeners] == ["PLAINTEXT://127.0.0.1:9092"]
    assert config.node_id == 1
    assert config.data_dir == "millstream-data"


def test_set_wins_over_the_file_and_the_last_wins(tmp_path: Path) -> None:
    config = load(tmp_path, "num.partitions=2\nnum.partitions=3\n", "num.partitions = 4")
    assert config[node.NUM_PARTITIONS] == 4
    (warning,) = config.warnings
    assert warning.replace(f"{tmp_path}/server.properties", "FILE") == (
        "FILE:2: num.partitions is set again; it replaces the value of FILE:1"
    )


def test_listen_and_data_dir_win_over_all(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text(STOCK)
    config = load_broker_config(file=str(path), listen="127.0.0.1:0", data_dir="/somewhere")
    assert [str(listener) for listener in config.listeners] == ["PLAINTEXT://127.0.0.1:0"]
    assert str(config.advertised({"PLAINTEXT": 4711}, "ignored", config.listeners)[0]) == "PLAINTEXT://127.0.0.1:4711"
    assert config.data_dir == "/somewhere"


def test_unknown_names_are_collected_with_a_hint(tmp_path: Path) -> None:
    text = "num.partitons=3\nretention.ms=5\nzookeeper.connect=localhost:2181\nmy.own.thing=1\n"
    config = load(tmp_path, text)
    assert [str(item).replace(f"{tmp_path}/server.properties", "FILE") for item in config.unknown] == [
        "FILE:1: unknown setting num.partitons (did you mean num.partitions?)",
        "FILE:2: unknown setting retention.ms (this is a topic setting; for all topics it is log.retention.ms)",
        "FILE:3: unknown setting zookeeper.connect (ZooKeeper is not used, as in Kafka 4)",
        "FILE:4: unknown setting my.own.thing",
    ]


def test_settings_of_one_listener_or_plugin_are_known(tmp_path: Path) -> None:
    names = (
        "listener.name.internal.ssl.keystore.location",
        "listener.name.a.scram-sha-256.sasl.login.class",
        "rsm.config.a",
    )
    config = load(tmp_path, "\n".join(f"{name}=x" for name in names))
    assert config.unknown == ()
    assert all(name in config.without_effect[0] for name in names[1:])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n\nnum.partitions=0", "FILE:3: num.partitions=0 is not allowed: it must be a whole number, at least 1"),
        ("log.dirs=/a,/a", "FILE:1: log.dirs has /a twice: write each directory once"),
        ("log.dirs=/a,/a/b", "FILE:1: /a/b is inside /a: log directories must not be inside each other"),
        ("listeners=", "FILE:1: listeners has no listener for clients"),
        ("listeners=CONTROLLER://:1\ncontroller.listener.names=CONTROLLER", "listeners has no listener for clients"),
        ("advertised.listeners=PLAINTEXT://0.0.0.0:1", "clients cannot connect to"),
        ("listener.security.protocol.map=A:PLAINTEXT,PLAINTEXT:PLAINTEXT\nadvertised.listeners=A://h:1",
         "FILE:2: advertised.listeners: A is not one of listeners (PLAINTEXT)"),
        ("inter.broker.listener.name=INSIDE", "listener.security.protocol.map has no protocol for INSIDE"),
        ("node.id=1\nbroker.id=2", "FILE:1: node.id=1 and broker.id=2 differ"),
        ("node.id=-1", "node.id=-1 is not allowed"),
        ("process.roles=broker", "process.roles=broker needs controllers"),
        (
            "process.roles=broker\nnode.id=1\ncontroller.listener.names=C\ncontroller.quorum.voters=1@a:1",
            "controller.quorum.voters names node 1, but process.roles=broker",
        ),
        ("node.id=4\ncontroller.quorum.voters=1@a:1,2@b:1", "does not name node 4"),
        (
            "process.roles=controller\nlisteners=PLAINTEXT://:1\ncontroller.listener.names=C",
            "process.roles=controller serves no clients",
        ),
        (
            "process.roles=broker\nnode.id=9\nlisteners=PLAINTEXT://:1,C://:2\ncontroller.listener.names=C\n"
            "controller.quorum.voters=1@a:1",
            "process.roles=broker needs no controller listener",
        ),
        ("process.roles=broker\nnode.id=9\ncontroller.quorum.voters=1@a:1", "controller.listener.names is missing"),
        ("controller.quorum.voters=1@a:1,1@b:1", "has node 1 twice"),
        ("controller.quorum.voters=1@a:1,2@a:1", "1@a:1 and 2@a:1 have the same address"),
        ("controller.quorum.voters=1@a:0", "must be id@host:port"),
        ("controller.quorum.bootstrap.servers=a", "must be host:port"),
        ("broker.heartbeat.interval.ms=5000", "must be at most half of broker.session.timeout.ms=9000"),
        ("replica.fetch.wait.max.ms=40000", "must be at most replica.lag.time.max.ms=30000"),
        ("process.roles=boss", "must be a list of broker, controller"),
        ("node.id=1\ncontroller.quorum.voters=1@a:1,2@b:1", "FILE:2: the other voters cannot reach this node: add CONTROLLER://a:1"),
        ("controller.quorum.voters=" + "1" * 9999 + "@a:1", "must be id@host:port"),
        ("controller.quorum.voters=a:1", "must be id@host:port"),
        ("controller.quorum.bootstrap.servers=a:1,b:1", "controller.listener.names is missing"),
        ("authorizer.class.name=org.example.Guard", "other Java classes cannot be loaded"),
        ("create.topic.policy.class.name=org.example.Policy", "Java classes cannot be loaded"),
        ("remote.log.storage.system.enable=true", "needs millstream.tier.url"),
        ("millstream.tier.url=ftp://host", "a URL with s3://"),
        ("millstream.tier.url=s3:///prefix", "and a bucket"),
        ("millstream.tier.url=file://tier", "file:/// and the path of a directory"),
        ("log.preallocate=true", "segments are not preallocated"),
        ("log.retention.ms=0", "at least 1, or -1"),
        ("num.io.threads=many", "num.io.threads=many is not allowed: it must be a whole number, at least 1"),
        ("max.connections.per.ip.overrides=host", "it must be a list of address:count"),
    ],
)  # fmt: skip
def test_refusals_are_one_line_that_names_the_place(tmp_path: Path, text: str, message: str) -> None:
    said = refusal(tmp_path, text)
    assert message in said
    assert said.startswith("FILE:")


def test_refusals_of_set_words(tmp_path: Path) -> None:
    assert refusal(tmp_path, "", "num.partitions").startswith("--set num.partitions: write name=value")
    assert refusal(tmp_path, "", "num.partitions=x").startswith("--set num.partitions: num.partitions=x is not")


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.properties: cannot be read: No such file"):
        load_broker_config(file="nowhere.properties")


def test_a_file_in_latin_1(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_bytes("broker.rack=Gr\xfcn".encode("latin-1"))
    assert load_broker_config(file=str(path))[node.BROKER_RACK] == "Gr\xfcn"


def test_the_older_name_of_the_node_id(tmp_path: Path) -> None:
    assert load(tmp_path, "broker.id=7").node_id == 7


def test_a_quorum_of_this_node_alone_is_fine(tmp_path: Path) -> None:
    assert load(tmp_path, "node.id=3\ncontroller.quorum.voters=3@localhost:9093").node_id == 3


def test_values_that_are_left_empty_are_not_set(tmp_path: Path) -> None:
    assert load(tmp_path, "log.retention.ms=\n")[log.LOG_RETENTION_MS] is None


def test_secrets_from_files_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secrets").write_text("key=hunter2\n")
    monkeypatch.setenv("STORE_PASSWORD", "hunter3")
    file = tmp_path / "server.properties"
    file.write_text(
        f"ssl.key.password=${{file:{tmp_path}/secrets:key}}\nconfig.providers=env\n"
        "config.providers.env.class=org.apache.kafka.common.config.provider.EnvVarConfigProvider\n"
        "ssl.keystore.password=${env:STORE_PASSWORD}\nnode.id=3\n"
    )
    config = load_broker_config(file=str(file))
    assert config.values["ssl.key.password"] == "hunter2"
    assert config.values["ssl.keystore.password"] == "hunter3"
    assert config.unknown == ()
    file.write_text("node.id=3\nssl.key.password=${file:/nowhere:x}\n")
    with pytest.raises(ConfigError, match=r"server\.properties:2: ssl\.key\.password: .*no such file"):
        load_broker_config(file=str(file))
