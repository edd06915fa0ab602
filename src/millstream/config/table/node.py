"""Settings of the node: identity, roles, listeners, data directory, topic defaults."""

import re

from millstream.config.setting import (
    Allowed,
    Importance,
    at_least,
    boolean,
    declared,
    integer,
    listed,
    one_of,
    optional_class,
    optional_list,
    optional_string,
    some_of,
    string,
)

_FEATURE = re.compile(r"[a-z.]{1,60}=[0-9]{1,4}")

_NO_JAVA = "Java classes cannot be loaded, and the broker does not start with a rule that it cannot apply"
_TRUST = (
    "authentication and authorization are not supported, and the broker does not start with a setting that "
    "requires them"
)

NODE_ID = integer(
    "node.id",
    1,
    "The id of this node, unique in the cluster. `broker.id` has the same meaning.",
    allowed=at_least(0),
    importance=Importance.HIGH,
)
BROKER_ID = integer(
    "broker.id",
    -1,
    "The older name of `node.id`. With -1, `node.id` is used.",
    allowed=at_least(-1),
    importance=Importance.HIGH,
)
PROCESS_ROLES = listed(
    "process.roles",
    ("broker", "controller"),
    "The roles of this node: `broker` serves clients, `controller` votes on the metadata. A node can have both.",
    allowed=some_of("broker", "controller"),
    importance=Importance.HIGH,
)
CLUSTER_ID = optional_string(
    "cluster.id",
    "The id of the cluster: 22 characters, as `kafka-storage random-uuid` prints them. Without it, an id is "
    "generated at the first start and stored in `meta.properties`. Millstream only.",
)
BROKER_RACK = optional_string(
    "broker.rack",
    "The rack or availability zone of this broker: what fails together and is larger than a machine. Machines have "
    "`millstream.machine.id`.",
)
CORES = string(
    "millstream.cores",
    "1",
    "The number of nodes that `millstream serve` runs on this machine, from 1 to 64, or `auto`: one for each core. "
    "`--cores` is the same. See docs/cores.md. Millstream only.",
    importance=Importance.HIGH,
)
MACHINE_ID = optional_string(
    "millstream.machine.id",
    "The machine of this broker. Replicas of a partition are on different machines, if there are enough of them. "
    "Without it, it is `machine-` and `node.id`, so that each broker is a machine of its own; the nodes of "
    "`millstream.cores` have that of the first one. Millstream only.",
)
MAX_FEATURE_LEVELS = listed(
    "millstream.max.feature.levels",
    (),
    "The highest levels of features that this node offers, as `NAME=LEVEL`: below what its version supports, as if it "
    "were of an earlier version. For rehearsals of upgrades. Millstream only.",
    allowed=Allowed("a list of NAME=LEVEL", lambda items: all(_FEATURE.fullmatch(each) for each in items)),
    importance=Importance.LOW,
)

LISTENERS = listed(
    "listeners",
    ("PLAINTEXT://127.0.0.1:9092",),
    "The addresses to listen on, as `NAME://host:port`. Without a host (`://:9092`) the broker listens on every "
    "interface. Port 0 selects a free port.",
    importance=Importance.HIGH,
)
ADVERTISED_LISTENERS = optional_list(
    "advertised.listeners",
    "The addresses that clients connect to. Without it, those of `listeners` are used.",
    importance=Importance.HIGH,
)
LISTENER_SECURITY_PROTOCOL_MAP = string(
    "listener.security.protocol.map",
    "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
    "The security protocol of each listener name, as `NAME:PROTOCOL,…`: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.",
    importance=Importance.LOW,
)
INTER_BROKER_LISTENER_NAME = optional_string(
    "inter.broker.listener.name",
    "The listener for connections between brokers. Without it, the listener named as `security.inter.broker.protocol`.",
)
SECURITY_INTER_BROKER_PROTOCOL = string(
    "security.inter.broker.protocol",
    "PLAINTEXT",
    "The security protocol between brokers, and the name of their listener, if `inter.broker.listener.name` is not "
    "set.",
    allowed=one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
)
CONTROLLER_LISTENER_NAMES = listed(
    "controller.listener.names",
    (),
    "The names of the controller's listeners. They are not advertised to clients.",
    importance=Importance.HIGH,
)
CONTROLLER_QUORUM_VOTERS = listed(
    "controller.quorum.voters",
    (),
    "The voters of the metadata quorum, as `id@host:port,…`. Every node needs the same value.",
    importance=Importance.HIGH,
)
CONTROLLER_QUORUM_BOOTSTRAP_SERVERS = listed(
    "controller.quorum.bootstrap.servers",
    (),
    "Addresses of controllers, as `host:port,…`, used if `controller.quorum.voters` is not set. A node with an "
    "empty disk joins the controllers named here. If it names only itself, it forms a new cluster.",
    importance=Importance.HIGH,
)

LOG_DIRS = optional_list(
    "log.dirs",
    "The log directories, with commas between them, each on a disk of its own (docs/disks.md). Without it, `log.dir` "
    "is used.",
    importance=Importance.HIGH,
)
LOG_DIR = listed(
    "log.dir",
    ("millstream-data",),
    "The log directories if `log.dirs` is not set.",
    importance=Importance.HIGH,
)
METADATA_LOG_DIR = optional_string(
    "metadata.log.dir",
    "The directory of the metadata log: one of the log directories, or a directory for it alone. The default is the "
    "first log directory.",
    importance=Importance.HIGH,
)

PRINCIPAL_BUILDER_CLASS = optional_class(
    "principal.builder.class",
    "The Java class that derives a client's principal from its connection.",
    only_default=_TRUST,
)
CREATE_TOPIC_POLICY_CLASS_NAME = optional_class(
    "create.topic.policy.class.name",
    "The Java class that may refuse the creation of a topic.",
    importance=Importance.LOW,
    only_default=_NO_JAVA,
)
ALTER_CONFIG_POLICY_CLASS_NAME = optional_class(
    "alter.config.policy.class.name",
    "The Java class that may refuse a change of settings.",
    importance=Importance.LOW,
    only_default=_NO_JAVA,
)
CLIENT_QUOTA_CALLBACK_CLASS = optional_class(
    "client.quota.callback.class",
    "The Java class that determines client quotas.",
    importance=Importance.LOW,
    only_default=_NO_JAVA,
)
CONFIG_PROVIDERS = listed(
    "config.providers",
    (),
    "Java classes that replace `${…}` in values.",
    importance=Importance.LOW,
    only_default=_NO_JAVA,
)
AUTO_CREATE_TOPICS_ENABLE = boolean(
    "auto.create.topics.enable",
    True,
    "Creates a topic with default settings when a client requests metadata of a topic that does not exist.",
    importance=Importance.HIGH,
)
DELETE_TOPIC_ENABLE = boolean("delete.topic.enable", True, "Allows the deletion of topics.", importance=Importance.HIGH)
NUM_PARTITIONS = integer(
    "num.partitions",
    1,
    "The number of partitions of a new topic if the request does not name one.",
    allowed=at_least(1),
)
DEFAULT_REPLICATION_FACTOR = integer(
    "default.replication.factor",
    1,
    "The replication factor of a new topic if the request does not name one.",
    allowed=at_least(1),
)
SCHEMAS_TOPIC = string(
    "millstream.schemas.topic",
    "_schemas",
    "The topic in which the cluster's schema registry stores schemas, for topics with "
    "`millstream.value.schema.validation`. Millstream only.",
    importance=Importance.LOW,
)
MAX_PARTITIONS_PER_TOPIC = integer(
    "millstream.max.partitions.per.topic",
    10_000,
    "The maximum number of partitions of one topic. It protects the cluster against a mistyped number. Millstream"
    " only.",
    allowed=at_least(1),
)
SETTINGS = declared(globals())
