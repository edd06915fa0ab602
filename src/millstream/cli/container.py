"""`millstream container`: the entry point of the container image, with the conventions of the image apache/kafka.

Settings come from the file `/mnt/shared/config/server.properties` if it is mounted, and from variables `KAFKA_…`, which
override it; without both, from the defaults of the image. `settings_of` and what it calls are pure: the environment and
the files come in. In a StatefulSet of Kubernetes, the number in the host name gives each pod its id and its roles.
"""

import json
import os
import re
import ssl
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.cli import exit_codes
from millstream.common.properties import PropertiesError, parse_properties
from millstream.config.setting import ConfigError

if TYPE_CHECKING:
    from millstream.config.broker_config import BrokerConfig

MOUNTED = "/mnt/shared/config/server.properties"
SECRETS = "/etc/kafka/secrets"
DATA = "/var/lib/kafka/data"
DEFAULT_CLUSTER_ID = "5L6g3nShT-eMCtK--X86sw"
"""That of the image apache/kafka."""
RUN_DIRECTORIES = ("/run/millstream", "/tmp", "/dev/shm")  # nosec B108: of a container, for its one process
"""Where the settings of this start are written: the first that can be written. The root may be read-only."""
SETTINGS_FILE = "millstream-server.properties"
SINGLE_NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.voters": "1@localhost:9093",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "advertised.listeners": "PLAINTEXT://localhost:9092",
    "inter.broker.listener.name": "PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
"""The settings of a container that is given none: one node, for clients on this machine."""
_OF_JAVA = frozenset(
    (
        "KAFKA_VERSION",
        "KAFKA_HEAP_OPT",
        "KAFKA_HEAP_OPTS",
        "KAFKA_OPTS",
        "KAFKA_JMX_OPTS",
        "KAFKA_JMX_PORT",
        "KAFKA_JMX_HOSTNAME",
        "KAFKA_JVM_PERFORMANCE_OPTS",
        "KAFKA_GC_LOG_OPTS",
        "KAFKA_LOG4J_OPTS",
        "KAFKA_LOG4J_ROOT_LOGLEVEL",
        "KAFKA_LOG4J_LOGGERS",
        "KAFKA_TOOLS_LOG4J_LOGLEVEL",
    )
)
"""No settings of a broker. KAFKA_OPTS may name a JAAS file, and KAFKA_LOG4J_ROOT_LOGLEVEL the level of the log."""
_STORES = {
    "KAFKA_SSL_KEYSTORE_FILENAME": "ssl.keystore.location",
    "KAFKA_SSL_TRUSTSTORE_FILENAME": "ssl.truststore.location",
}
_PASSWORDS = {
    "KAFKA_SSL_KEY_CREDENTIALS": "ssl.key.password",
    "KAFKA_SSL_KEYSTORE_CREDENTIALS": "ssl.keystore.password",
    "KAFKA_SSL_TRUSTSTORE_CREDENTIALS": "ssl.truststore.password",
}
_JAAS_FILE = re.compile(r"-Djava\.security\.auth\.login\.config=(\S+)")
_SECTION = re.compile(r"(?:\w+\.)?KafkaServer\s*\{(.*?)\}\s*;", re.S)
_MODULES = {
    "PlainLoginModule": ("plain",),
    "ScramLoginModule": ("scram-sha-256", "scram-sha-512"),
    "OAuthBearerLoginModule": ("oauthbearer",),
    "Krb5LoginModule": ("gssapi",),
}
_LEVELS = {"TRACE": "DEBUG", "WARN": "WARNING", "FATAL": "CRITICAL", "OFF": "CRITICAL", "ALL": "DEBUG"}
_HEALTH_TIMEOUT_SECONDS = 5.0
_API_TIMEOUT_SECONDS = 30.0
_POLL_INTERVAL_SECONDS = 1.0
_LARGEST_NODE_BYTES = 10 * 1024 * 1024
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
ZONE_LABEL = "topology.kubernetes.io/zone"
ReadFile = Callable[[str], str]
"""The text of a file; ConfigError if it cannot be read."""


def setting_name(variable: str) -> str:
    """`KAFKA_ABC_DEF` is `abc.def`; two underscores are one, three are a hyphen."""
    name = variable.removeprefix("KAFKA_").lower()
    return name.replace("_", ".").replace("...", "-").replace("..", "_")


def settings_of(environment: Mapping[str, str], mounted: Mapping[str, str], read: ReadFile) -> dict[str, str]:
    """The settings of the node. `mounted` are those of the file that was mounted."""
    given = {
        setting_name(name): _unescaped(value)
        for name, value in environment.items()
        if name.startswith("KAFKA_") and name not in (*_OF_JAVA, *_STORES, *_PASSWORDS)
    }
    given |= _stores(environment, read)
    settings = {**mounted, **given}
    if "MILLSTREAM_STATEFULSET_SERVICE" in environment:
        settings = {**_of_pod(environment), **settings}
    elif not settings:
        settings = dict(SINGLE_NODE)
    _check_listeners(settings)
    settings |= {name: value for name, value in _logins(environment, settings, read).items() if name not in settings}
    if not settings.keys() & {"log.dir", "log.dirs"}:
        settings["log.dirs"] = DATA
    settings.setdefault("cluster.id", environment.get("CLUSTER_ID") or DEFAULT_CLUSTER_ID)
    # A container has a network of its own, and apache/kafka listens in it without authentication.
    settings.setdefault("millstream.allow.insecure.listeners", "true")
    return settings


def _unescaped(value: str) -> str:
    """apache/kafka writes the value into a properties file, so escapes in it count."""
    (line,) = parse_properties(f"name={value}".replace("\n", "\\n"), "environment")
    return line.value


def _escaped(value: str) -> str:
    return re.sub(r"^ ", r"\\ ", value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r"))


def _check_listeners(settings: dict[str, str]) -> None:
    roles = {each.strip() for each in settings.get("process.roles", "").split(",")}
    advertised = settings.get("advertised.listeners")
    if roles == {"controller"}:
        if advertised:
            raise ConfigError("KAFKA_ADVERTISED_LISTENERS is not for a node that is only a controller: remove it")
        settings.pop("advertised.listeners", None)
    elif not settings.get("listeners") and advertised:
        settings["listeners"] = re.sub(r"://[^:,]*:", "://0.0.0.0:", advertised)


def _stores(environment: Mapping[str, str], read: ReadFile) -> dict[str, str]:
    """Key and trust stores, and their passwords, from files in the directory of secrets."""
    settings = {}
    for variable, name in _STORES.items():
        if environment.get(variable):
            settings[name] = f"{SECRETS}/{environment[variable]}"
            read(settings[name])  # a missing file is reported with the name of the variable
    for variable, name in _PASSWORDS.items():
        if environment.get(variable):
            settings[name] = read(f"{SECRETS}/{environment[variable]}").strip()
    return settings


def _logins(environment: Mapping[str, str], settings: Mapping[str, str], read: ReadFile) -> dict[str, str]:
    """The login modules of the JAAS file that KAFKA_OPTS names, for each listener with SASL."""
    found = _JAAS_FILE.search(environment.get("KAFKA_OPTS", ""))
    if found is None:
        return {}
    path = found.group(1).strip("\"'")
    section = _SECTION.search(_without_comments(read(path)))
    if section is None:
        raise ConfigError(f"{path} (KAFKA_OPTS) has no section KafkaServer {{ … }};")
    logins = {}
    for module in re.findall(r'(?:[^;"]|"(?:\\.|[^"\\])*")+;', section.group(1)):
        class_name = module.split(None, 1)[0] if module.strip() else ""
        for mechanism in _MODULES.get(class_name.rpartition(".")[2], ()):
            for listener in _sasl_listeners(settings):
                logins[f"listener.name.{listener.lower()}.{mechanism}.sasl.jaas.config"] = " ".join(module.split())
    return logins


def _without_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/|^\s*(?://|#).*?$", "", text, flags=re.S | re.M)


def _sasl_listeners(settings: Mapping[str, str]) -> list[str]:
    protocols = dict(
        pair.strip().split(":", 1)
        for pair in settings.get("listener.security.protocol.map", "").split(",")
        if ":" in pair
    )
    names = [each.partition("://")[0].strip() for each in settings.get("listeners", "").split(",")]
    return [name for name in names if protocols.get(name, name).startswith("SASL_")]


def _of_pod(environment: Mapping[str, str]) -> dict[str, str]:
    """Id, roles, listeners and voters of a pod of a StatefulSet: the first pods are controllers too."""
    service = environment["MILLSTREAM_STATEFULSET_SERVICE"]
    host = environment.get("HOSTNAME", "")
    name, _, number = host.rpartition("-")
    voters = environment.get("MILLSTREAM_STATEFULSET_CONTROLLERS", "3")
    if not number.isdigit() or not voters.isdigit() or int(voters) < 1:
        raise ConfigError(
            f"HOSTNAME={host} and MILLSTREAM_STATEFULSET_CONTROLLERS={voters}: the name of a pod ends with its number,"
            " and the number of controllers is at least 1"
        )
    is_controller = int(number) < int(voters)
    listeners = {"CLIENT": 9092, "NODES": 9094, **({"CONTROLLER": 9093} if is_controller else {})}
    return {
        "node.id": number,
        "process.roles": "broker,controller" if is_controller else "broker",
        "controller.quorum.voters": ",".join(f"{each}@{name}-{each}.{service}:9093" for each in range(int(voters))),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "NODES",
        "listeners": ",".join(f"{each}://:{port}" for each, port in listeners.items()),
        "advertised.listeners": ",".join(f"{each}://{host}.{service}:{port}" for each, port in listeners.items()),
    }


# What touches files, the network and the process


def read_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}: mount it, or correct the variable that names it") from None


def run_directories() -> tuple[str, ...]:
    """Where the settings may be written; MILLSTREAM_RUN_DIRECTORY names another place."""
    own = os.environ.get("MILLSTREAM_RUN_DIRECTORY")
    return (own,) if own else RUN_DIRECTORIES


def write_settings(settings: Mapping[str, str], directories: Iterable[str]) -> str:
    """Writes the settings into a file that only this user can read; returns its path."""
    text = "".join(f"{name}={_escaped(value)}\n" for name, value in sorted(settings.items()))
    reasons = []
    for directory in directories:
        path = os.path.join(directory, SETTINGS_FILE)
        try:
            Path(path).unlink(missing_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            reasons.append(f"{directory} ({error.strerror})")
            continue
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
        return path
    raise ConfigError(f"the settings cannot be written to {', '.join(reasons)}: mount a tmpfs on one of them")


def run(arguments: Sequence[str]) -> int:
    """Serves, with the settings of the container; `arguments` are more options of `millstream serve`."""
    from millstream.cli import serve

    if list(arguments) == ["--health"]:
        return health()
    if list(arguments[:1]) == ["--wait-to-stop"]:
        return wait_to_stop(arguments[1] if len(arguments) == 2 else "")
    options = serve.parse(arguments)
    if options is None or options.config is not None or options.listen is not None or options.data_dir is not None:
        return _failed(
            "millstream container takes the options of `millstream serve`, but not --config, --listen and --data-dir:"
            " give settings as variables KAFKA_…"
        )
    try:
        mounted = _mounted(read_text(MOUNTED)) if os.path.exists(MOUNTED) else {}
        settings = settings_of(os.environ, mounted, read_text)
        if "MILLSTREAM_RACK_OF_NODE" in os.environ and "broker.rack" not in settings:
            settings |= _rack(os.environ)
        options.config = write_settings(settings, run_directories())
    except ConfigError as error:
        return _failed(error.message)
    except PropertiesError as error:
        return _failed(f"a variable KAFKA_… cannot be read: {error}")
    level = os.environ.get("KAFKA_LOG4J_ROOT_LOGLEVEL", "").upper()
    if level:
        os.environ.setdefault("MILLSTREAM_LOG_LEVEL", _LEVELS.get(level, level))
    if os.environ.get("KAFKA_LOG4J_LOGGERS"):
        print("millstream: warning: KAFKA_LOG4J_LOGGERS has no effect: loggers of Java", file=sys.stderr)
    options.http = options.http or os.environ.get("MILLSTREAM_HTTP") or None
    options.no_http = options.no_http or options.http is None
    return serve.run(options)


def _mounted(text: str) -> dict[str, str]:
    try:
        return {each.name: each.value for each in parse_properties(text, MOUNTED)}
    except PropertiesError as error:
        raise ConfigError(str(error)) from None


def health() -> int:
    """0 if the node of this container is ready, else 1 with the reason: for HEALTHCHECK of the image."""
    reason = _ask("/readyz")
    return exit_codes.OK if reason is None else _failed(reason)


def wait_to_stop(limit: str) -> int:
    """Waits until every partition can be written without this node, at most `limit` seconds. Always 0: a pod stops in
    any case, and the log has the reason."""
    if not limit.isdigit():
        return _failed("--wait-to-stop needs the number of seconds to wait at most")
    deadline = time.monotonic() + int(limit)
    while (reason := _ask("/stopz")) is not None:
        if time.monotonic() >= deadline:
            _failed(f"not safe to stop after {limit} s, and stopped anyway: {reason}")
            break
        time.sleep(_POLL_INTERVAL_SECONDS)
    return exit_codes.OK


def _ask(path: str) -> str | None:
    """What the node of this container says to a probe; None if it agrees."""
    from millstream.config.loading import load_broker_config

    places = (os.path.join(each, SETTINGS_FILE) for each in run_directories())
    file = next((place for place in places if os.path.exists(place)), None)
    if file is None:
        return "there are no settings yet: the node has not started"
    try:
        url, context = _probe(load_broker_config(file=file), path)
        with urllib.request.urlopen(url, timeout=_HEALTH_TIMEOUT_SECONDS, context=context):  # nosec B310: its own address
            return None
    except ConfigError as error:
        return error.message
    except urllib.error.HTTPError as error:
        return error.read(500).decode(errors="replace").strip()
    except OSError as error:
        return f"{url}: {error}"


def _rack(environment: Mapping[str, str], account: str = SERVICE_ACCOUNT) -> dict[str, str]:
    """`broker.rack`: the zone of the machine of this pod, as its label in Kubernetes says. None without the label."""
    node, label = environment["MILLSTREAM_RACK_OF_NODE"], environment.get("MILLSTREAM_RACK_LABEL", ZONE_LABEL)
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "443")
    url = f"https://{f'[{host}]' if ':' in host else host}:{port}/api/v1/nodes/{urllib.parse.quote(node, safe='')}"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {read_text(f'{account}/token').strip()}"})
    try:
        context = ssl.create_default_context(cafile=f"{account}/ca.crt")
        with urllib.request.urlopen(request, timeout=_API_TIMEOUT_SECONDS, context=context) as response:  # nosec B310: https
            labels = json.loads(response.read(_LARGEST_NODE_BYTES))["metadata"].get("labels", {})
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"the zone of the machine {node} cannot be read ({url}: {error}): the chart gives the right with"
            " rack.enabled; without racks set rack.enabled=false"
        ) from None
    zone = labels.get(label)
    if not zone:
        print(f"millstream: warning: the machine {node} has no label {label}: no broker.rack", file=sys.stderr)
    return {"broker.rack": str(zone)} if zone else {}


def _probe(config: "BrokerConfig", path: str) -> tuple[str, ssl.SSLContext | None]:
    """The address for probes: of a listener that wants no client certificate, if there is one."""
    from millstream.config.table import ssl as settings

    served = config.listeners or config.controller_listeners
    listener = min(served, key=lambda each: config.listener(each.name)[settings.SSL_CLIENT_AUTH] == "required")
    own = config.listener(listener.name)
    url = f"{'https' if own.uses_tls else 'http'}://{_local(listener.host)}:{listener.port}{path}"
    if not own.uses_tls:
        return url, None
    # It asks the process of this container, on this machine: the certificate is for another name.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    location = own[settings.SSL_KEYSTORE_LOCATION]
    if own[settings.SSL_KEYSTORE_TYPE] == "PEM" and location:
        password = own[settings.SSL_KEY_PASSWORD]
        context.load_cert_chain(location, password=None if password is None else str(password))
    return url, context


def _local(host: str) -> str:
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # nosec B104
    return f"[{host}]" if ":" in host else host


def _failed(reason: str) -> int:
    print(f"millstream: {reason}", file=sys.stderr)
    return exit_codes.FAILED
