"""Who this node is, where it listens, and where its data lies."""

from millstream.config.setting import (
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

_NO_JAVA = "Java classes cannot be loaded here, and leaving the rule out unseen would be worse than not starting"
_TRUST = "the broker trusts every client in this version, so it does not start with a promise to check them"

NODE_ID = integer(
    "node.id",
    1,
    "The number of this node, unique in the cluster. `broker.id` means the same.",
    allowed=at_least(0),
    importance=Importance.HIGH,
)
BROKER_ID = integer(
    "broker.id",
    -1,
    "The older name of `node.id`; -1 means that `node.id` decides.",
    allowed=at_least(-1),
    importance=Importance.HIGH,
)
PROCESS_ROLES = listed(
    "process.roles",
    ("broker", "controller"),
    "What this process does: serve clients (`broker`), decide on metadata (`controller`), or both.",
    allowed=some_of("broker", "controller"),
    importance=Importance.HIGH,
)
CLUSTER_ID = optional_string(
    "cluster.id",
    "Pins the id of the cluster (22 characters, as `kafka-storage random-uuid` prints). Left out, one is made at the "
    "first start and kept in `meta.properties`. Millstream's own.",
)
BROKER_RACK = optional_string("broker.rack", "The rack or zone this broker stands in.")

LISTENERS = listed(
    "listeners",
    ("PLAINTEXT://127.0.0.1:9092",),
    "Where to listen, as `NAME://host:port`. No host (`://:9092`) means every interface; port 0 picks a free port.",
    importance=Importance.HIGH,
)
ADVERTISED_LISTENERS = optional_list(
    "advertised.listeners",
    "The addresses that clients are told to connect to. Left out, they are those of `listeners`.",
    importance=Importance.HIGH,
)
LISTENER_SECURITY_PROTOCOL_MAP = string(
    "listener.security.protocol.map",
    "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
    "Which security protocol each listener name speaks, as `NAME:PROTOCOL,…`. Only PLAINTEXT can be used now.",
    importance=Importance.LOW,
)
INTER_BROKER_LISTENER_NAME = optional_string(
    "inter.broker.listener.name", "The listener that brokers use among each other."
)
SECURITY_INTER_BROKER_PROTOCOL = string(
    "security.inter.broker.protocol",
    "PLAINTEXT",
    "The security protocol that brokers use among each other, where `inter.broker.listener.name` is not set.",
    allowed=one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    only_default="only PLAINTEXT listeners can be used in this version",
)
CONTROLLER_LISTENER_NAMES = listed(
    "controller.listener.names",
    (),
    "The names of the listeners that the controller uses; they are not shown to clients.",
    importance=Importance.HIGH,
)
CONTROLLER_QUORUM_VOTERS = listed(
    "controller.quorum.voters",
    (),
    "The voters of the metadata quorum, as `id@host:port,…`; the same on every node.",
    importance=Importance.HIGH,
)
CONTROLLER_QUORUM_BOOTSTRAP_SERVERS = listed(
    "controller.quorum.bootstrap.servers",
    (),
    "Addresses at which to find the metadata quorum, as `host:port,…`, where `controller.quorum.voters` is not set. A "
    "node with an empty disk that names others joins them; one that names only itself is a cluster by itself.",
    importance=Importance.HIGH,
)

LOG_DIRS = optional_list(
    "log.dirs",
    "The directory for all data; `log.dir` if it is left out. This version uses exactly one.",
    importance=Importance.HIGH,
)
LOG_DIR = listed(
    "log.dir",
    ("millstream-data",),
    "The directory for all data, where `log.dirs` is not set.",
    importance=Importance.HIGH,
)
METADATA_LOG_DIR = optional_string(
    "metadata.log.dir",
    "The directory of the metadata log. It must be the data directory, where it is if this is left out.",
    importance=Importance.HIGH,
)

AUTHORIZER_CLASS_NAME = string(
    "authorizer.class.name",
    "",
    "The class that decides who may do what.",
    importance=Importance.LOW,
    only_default=_TRUST,
)
PRINCIPAL_BUILDER_CLASS = optional_class(
    "principal.builder.class", "The Java class that names a client after its connection.", only_default=_TRUST
)
CREATE_TOPIC_POLICY_CLASS_NAME = optional_class(
    "create.topic.policy.class.name",
    "The Java class that may refuse a new topic.",
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
    "The Java class that decides on quotas.",
    importance=Importance.LOW,
    only_default=_NO_JAVA,
)
CONFIG_PROVIDERS = listed(
    "config.providers",
    (),
    "Java classes that fill in `${…}` in values.",
    importance=Importance.LOW,
    only_default=_NO_JAVA,
)
REMOTE_LOG_STORAGE_SYSTEM_ENABLE = boolean(
    "remote.log.storage.system.enable",
    False,
    "Whether logs can have a second tier.",
    only_default="tiered storage is not part of this version",
)
AUTO_CREATE_TOPICS_ENABLE = boolean(
    "auto.create.topics.enable",
    True,
    "Whether asking for a topic that does not exist creates it with the default settings.",
    importance=Importance.HIGH,
)
DELETE_TOPIC_ENABLE = boolean("delete.topic.enable", True, "Whether topics can be deleted.", importance=Importance.HIGH)
NUM_PARTITIONS = integer(
    "num.partitions",
    1,
    "How many partitions a topic gets when its creator does not say.",
    allowed=at_least(1),
)
DEFAULT_REPLICATION_FACTOR = integer(
    "default.replication.factor",
    1,
    "How many replicas a partition gets when its creator does not say.",
    allowed=at_least(1),
)
SCHEMAS_TOPIC = string(
    "millstream.schemas.topic",
    "_schemas",
    "Where schema registries of this cluster keep their schemas, for topics with `millstream.value.schema.validation`. "
    "Millstream's own.",
    importance=Importance.LOW,
)
MAX_PARTITIONS_PER_TOPIC = integer(
    "millstream.max.partitions.per.topic",
    10_000,
    "The most partitions that one topic may have. Millstream's own: a slip of the finger should not create a million.",
    allowed=at_least(1),
)
SETTINGS = declared(globals())
