"""The settings of a connection, by the names of Kafka's Java client and of librdkafka.

Every name is used (`USED`), ignored (`IGNORED`, such as sizes of Java's buffers), or refused with the closest name. A
setting that weakens or replaces security is never ignored.

Ignored names concern consumers, producers and threads of Java's client or librdkafka, so the settings of such a client
can be passed on as they are. `Cluster.settings.ignored` lists those that were given.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import field
from enum import Enum
from typing import TypeVar

from millstream.common.bearer_tokens import TokenSource
from millstream.common.close_match import did_you_mean
from millstream.common.lazy_dataclass import dataclass
from millstream.raw_client.errors import SetupError
from millstream.raw_client.security import BEARER, MECHANISMS, SaslSettings, TlsSettings

_NAMES = """
# The address is given separately.
bootstrap.servers metadata.broker.list
# The token endpoint is enough.
sasl.oauthbearer.method sasl.login.callback.handler.class sasl.oauthbearer.jwt.retriever.class
# Metadata refreshes, reconnects and retries: fixed in this client.
auto.include.jmx.reporter bootstrap.controllers client.dns.lookup client.rack connections.max.idle.ms
metadata.max.age.ms metadata.max.idle.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy
reconnect.backoff.max.ms reconnect.backoff.ms retries retry.backoff.max.ms retry.backoff.ms
socket.connection.setup.timeout.max.ms topic.metadata.refresh.interval.ms topic.metadata.refresh.sparse
topic.metadata.refresh.fast.interval.ms topic.metadata.propagation.max.ms api.version.request
api.version.request.timeout.ms api.version.fallback.ms broker.version.fallback broker.address.ttl
socket.max.fails socket.nagle.disable socket.blocking.max.ms max.in.flight message.max.bytes
receive.message.max.bytes message.copy.max.bytes
# Metrics, logs, plug-ins.
config.providers enable.metrics.push interceptor.classes metric.reporters metrics.num.samples
metrics.recording.level metrics.sample.window.ms security.providers statistics.interval.ms debug log_level
log.queue log.thread.name log.connection.close enable.random.seed internal.termination.signal
ssl.engine.factory.class ssl.keymanager.algorithm ssl.trustmanager.algorithm ssl.provider
ssl.secure.random.implementation
sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
sasl.login.refresh.window.jitter sasl.login.connect.timeout.ms sasl.login.read.timeout.ms
sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms
# Of consumers.
allow.auto.create.topics auto.commit.interval.ms auto.offset.reset check.crcs enable.auto.commit
enable.auto.offset.store enable.partition.eof exclude.internal.topics fetch.error.backoff.ms fetch.max.bytes
fetch.max.wait.ms fetch.message.max.bytes fetch.min.bytes fetch.wait.max.ms group.id group.instance.id
group.protocol group.remote.assignor heartbeat.interval.ms isolation.level key.deserializer
max.partition.fetch.bytes max.poll.interval.ms max.poll.records partition.assignment.strategy
queued.max.messages.kbytes queued.min.messages session.timeout.ms value.deserializer
# Of producers.
acks batch.num.messages batch.size buffer.memory compression.codec compression.gzip.level compression.level
compression.lz4.level compression.type compression.zstd.level delivery.timeout.ms enable.idempotence key.serializer
linger.ms max.block.ms max.in.flight.requests.per.connection max.request.size message.send.max.retries
message.timeout.ms partitioner partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms
partitioner.class partitioner.ignore.keys queue.buffering.max.kbytes queue.buffering.max.messages
queue.buffering.max.ms request.required.acks sticky.partitioning.linger.ms
transaction.timeout.ms transaction.two.phase.commit.enable transactional.id value.serializer
"""
IGNORED: frozenset[str] = frozenset(
    name for line in _NAMES.splitlines() if not line.startswith("#") for name in line.split()
)


_LINE = re.compile(
    r"\s*(?P<module>[\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(?P<options>.*?);?\s*\Z", re.S
)
_OPTION = re.compile(r"""([\w.]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""")
_EXAMPLE = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="…" password="…";'


def login_of(line: str) -> tuple[str, dict[str, str]]:
    """The login module of `sasl.jaas.config` (without its package) and its options. The line is secret, so errors do
    not contain it."""
    found = _LINE.match(line)
    if found is None:
        raise SetupError(f"sasl.jaas.config is not a login configuration: write {_EXAMPLE}")
    options = {
        name: re.sub(r"\\(.)", r"\1", double or single) or bare
        for name, double, single, bare in _OPTION.findall(found["options"])
    }
    return found["module"].rsplit(".", 1)[-1], options


def credentials_of(line: str) -> tuple[str, str]:
    """User and password from a line of `sasl.jaas.config`."""
    module, options = login_of(line)
    if module not in ("PlainLoginModule", "ScramLoginModule"):
        raise SetupError(f"sasl.jaas.config: {module} is not supported; PlainLoginModule and ScramLoginModule are")
    missing = [name for name in ("username", "password") if name not in options]
    if missing:
        raise SetupError(f"sasl.jaas.config has no {' and no '.join(missing)}: write {_EXAMPLE}")
    return options["username"], options["password"]


T = TypeVar("T")
_LONGEST_REQUEST_TIMEOUT_SECONDS = 10.0
_SEE = "see the connection settings of Kafka's clients"

USED: Mapping[str, str] = {
    "client.id": "name of this client in logs and quotas of brokers",
    "security.protocol": "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL",
    "sasl.mechanism": "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER",
    "sasl.mechanisms": "the same, librdkafka's name",
    "sasl.jaas.config": "user and password, Java's format",
    "sasl.username": "user",
    "sasl.password": "password",
    "sasl.oauthbearer.token": "token for OAUTHBEARER; Millstream only",
    "sasl.oauthbearer.token.endpoint.url": "where tokens come from: https://… (client credentials) or file:///path",
    "sasl.oauthbearer.client.credentials.client.id": "client id for the endpoint",
    "sasl.oauthbearer.client.id": "the same, librdkafka's name",
    "sasl.oauthbearer.client.credentials.client.secret": "client secret for the endpoint",
    "sasl.oauthbearer.client.secret": "the same, librdkafka's name",
    "sasl.oauthbearer.scope": "scope of the token",
    "ssl.truststore.location": "PEM or PKCS12 file with CA certificates; the system's by default",
    "ssl.truststore.password": "password of a PKCS12 file",
    "ssl.truststore.certificates": "the same as text",
    "ssl.truststore.type": "PEM or PKCS12; the content of the file decides",
    "ssl.ca.location": "PEM file with CA certificates, or a directory of such files",
    "ssl.ca.pem": "the same as text",
    "ssl.keystore.location": "PEM or PKCS12 file with this client's key and certificates",
    "ssl.keystore.password": "password of a PKCS12 file",
    "ssl.keystore.type": "PEM or PKCS12; the content of the file decides",
    "ssl.keystore.certificate.chain": "this client's certificates as text",
    "ssl.keystore.key": "this client's key as text",
    "ssl.certificate.location": "PEM file with this client's certificates",
    "ssl.certificate.pem": "the same as text",
    "ssl.key.location": "PEM file with this client's key",
    "ssl.key.pem": "the same as text",
    "ssl.key.password": "password of the key",
    "ssl.endpoint.identification.algorithm": "https (the certificate must have the host name), or none",
    "enable.ssl.certificate.verification": "false accepts any certificate",
    "ssl.protocol": "newest TLS version",
    "ssl.enabled.protocols": "TLS versions, separated by commas",
    "ssl.cipher.suites": "OpenSSL's cipher list, for TLS 1.2",
    "request.timeout.ms": "timeout of a response",
    "socket.timeout.ms": "the same, librdkafka's name",
    "default.api.timeout.ms": "timeout of a call with all its retries",
    "socket.connection.setup.timeout.ms": "timeout of a connection attempt",
    "send.buffer.bytes": "size of the socket buffer; -1 for the default of the system",
    "socket.send.buffer.bytes": "the same, librdkafka's name",
    "receive.buffer.bytes": "size of the socket buffer; -1 for the default of the system",
    "socket.receive.buffer.bytes": "the same, librdkafka's name",
    "socket.keepalive.enable": "TCP keep-alive",
}


class SecurityProtocol(Enum):
    """Whether TLS and SASL are used."""

    PLAINTEXT = False, False
    SSL = True, False
    SASL_PLAINTEXT = False, True
    SASL_SSL = True, True

    @property
    def has_tls(self) -> bool:
        return self.value[0]

    @property
    def has_sasl(self) -> bool:
        return self.value[1]


@dataclass(frozen=True, slots=True)
class WireSettings:
    client_id: str
    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    tls: TlsSettings | None = None
    sasl: SaslSettings | None = None
    connect_timeout_s: float = 10.0
    request_timeout_s: float = _LONGEST_REQUEST_TIMEOUT_SECONDS
    call_timeout_s: float = 30.0
    send_buffer_bytes: int = -1
    receive_buffer_bytes: int = -1
    keep_alive: bool = False
    ignored: tuple[str, ...] = field(default=())
    """Settings that were given and are ignored."""


def parse_settings(settings: Mapping[str, object], client_id: str, timeout_s: float) -> WireSettings:
    """Parses the settings. SetupError for a wrong name or value, with the next step."""
    for name in settings:
        if name not in USED and name not in IGNORED:
            raise SetupError(f"there is no setting {name!r}: {did_you_mean(name, [*USED, *IGNORED], otherwise=_SEE)}")
    values = _Values({name: str(value) for name, value in settings.items() if value is not None})
    protocol = values.choice("security.protocol", SecurityProtocol.__members__, SecurityProtocol.PLAINTEXT)
    call_timeout_s = values.milliseconds("default.api.timeout.ms", default_s=timeout_s)
    return WireSettings(
        client_id=values.text("client.id") or client_id,
        protocol=protocol,
        tls=_tls(values) if protocol.has_tls else None,
        sasl=_sasl(values) if protocol.has_sasl else None,
        connect_timeout_s=values.milliseconds("socket.connection.setup.timeout.ms", default_s=10.0),
        # A third of the whole: after a broker that hangs there must be time to try another one.
        request_timeout_s=values.milliseconds(
            "request.timeout.ms",
            "socket.timeout.ms",
            default_s=min(_LONGEST_REQUEST_TIMEOUT_SECONDS, call_timeout_s / 3),
        ),
        call_timeout_s=call_timeout_s,
        send_buffer_bytes=values.whole_number("send.buffer.bytes", "socket.send.buffer.bytes", default=-1),
        receive_buffer_bytes=values.whole_number("receive.buffer.bytes", "socket.receive.buffer.bytes", default=-1),
        keep_alive=values.flag("socket.keepalive.enable", default=False),
        ignored=tuple(sorted(name for name in settings if name in IGNORED)),
    )


def _tls(values: "_Values") -> TlsSettings:
    for name in ("ssl.truststore.type", "ssl.keystore.type"):
        kind = values.text(name)
        if kind and kind.upper() not in ("PEM", "PKCS12"):
            raise SetupError(
                f"{name}={kind}: PEM and PKCS12 are supported; `keytool -importkeystore -srckeystore FILE -destkeystore"
                " FILE.p12 -deststoretype PKCS12` converts a store"
            )
    given = values.text("ssl.endpoint.identification.algorithm", empty_counts=True)
    algorithm = "https" if given is None else given.strip().lower()
    if algorithm not in ("https", "", "none"):
        raise SetupError(f"ssl.endpoint.identification.algorithm={algorithm}: give https, or none")
    return TlsSettings(
        ca_location=values.text("ssl.truststore.location", "ssl.ca.location"),
        ca_pem=values.text("ssl.truststore.certificates", "ssl.ca.pem"),
        ca_password=values.text("ssl.truststore.password"),
        certificate_location=values.text("ssl.keystore.location", "ssl.certificate.location"),
        certificate_pem=values.text("ssl.keystore.certificate.chain", "ssl.certificate.pem"),
        key_location=values.text("ssl.key.location"),
        key_pem=values.text("ssl.keystore.key", "ssl.key.pem"),
        key_password=values.text("ssl.key.password"),
        store_password=values.text("ssl.keystore.password"),
        checks_host=algorithm == "https",
        checks_certificate=values.flag("enable.ssl.certificate.verification", default=True),
        protocols=tuple(
            each.strip() for each in (values.text("ssl.enabled.protocols") or "").split(",") if each.strip()
        ),
        newest_protocol=values.text("ssl.protocol"),
        ciphers=values.text("ssl.cipher.suites"),
    )


def _sasl(values: "_Values") -> SaslSettings:
    mechanism = (values.text("sasl.mechanism", "sasl.mechanisms") or "").strip().upper()
    if mechanism not in MECHANISMS:
        given = f"sasl.mechanism={mechanism}" if mechanism else "sasl.mechanism is missing"
        raise SetupError(f"{given}: give {', '.join(MECHANISMS)}")
    jaas = values.text("sasl.jaas.config")
    if mechanism == BEARER:
        return SaslSettings(mechanism, "", "", bearer=_token_source(values, jaas))
    username, password = values.text("sasl.username"), values.text("sasl.password")
    by_token = False
    if jaas is not None:
        if username is not None or password is not None:
            raise SetupError("sasl.jaas.config and sasl.username/sasl.password exclude each other")
        username, password = credentials_of(jaas)
        by_token = login_of(jaas)[1].get("tokenauth", "").lower() == "true"
    if username is None or password is None:
        raise SetupError("SASL needs a user and a password: give sasl.username and sasl.password, or sasl.jaas.config")
    return SaslSettings(mechanism, username, password, by_token)


def _token_source(values: "_Values", jaas: str | None) -> TokenSource:
    options = {} if jaas is None else login_of(jaas)[1]
    token = values.text("sasl.oauthbearer.token")
    url = values.text("sasl.oauthbearer.token.endpoint.url")
    if token is not None and url is not None:
        raise SetupError("sasl.oauthbearer.token and sasl.oauthbearer.token.endpoint.url exclude each other")
    if token is not None:
        return TokenSource(token=token)
    if url is None:
        raise SetupError(
            "OAUTHBEARER needs a token: give sasl.oauthbearer.token.endpoint.url (https://… or file:///path)"
        )
    if url.startswith("file:"):
        return TokenSource(file=url.removeprefix("file:").replace("///", "/", 1))
    names = "sasl.oauthbearer.client.credentials.client", "sasl.oauthbearer.client"
    client_id = values.text(*(f"{name}.id" for name in names)) or options.get("clientId")
    secret = values.text(*(f"{name}.secret" for name in names)) or options.get("clientSecret")
    if not client_id or not secret:
        raise SetupError(f"{names[0]}.id and {names[0]}.secret are missing: the endpoint gives tokens for them")
    scope = values.text("sasl.oauthbearer.scope") or options.get("scope")
    return TokenSource(endpoint=url, client_id=client_id, client_secret=secret, scope=scope)


class _Values:
    """Settings as text, by any of their names."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def text(self, *names: str, empty_counts: bool = False) -> str | None:
        given = [name for name in names if self._values.get(name) or (empty_counts and name in self._values)]
        if len(given) > 1 and len({self._values[name] for name in given}) > 1:
            raise SetupError(f"{' and '.join(given)} are the same setting with different values: give one of them")
        return self._values[given[0]] if given else None

    def choice(self, name: str, known: Mapping[str, T], default: T) -> T:
        text = self.text(name)
        if text is None:
            return default
        if text.strip().upper() not in known:
            raise SetupError(f"{name}={text}: give one of {', '.join(known)}")
        return known[text.strip().upper()]

    def flag(self, name: str, *, default: bool) -> bool:
        return self.choice(name, {"TRUE": True, "FALSE": False}, default)

    def milliseconds(self, *names: str, default_s: float) -> float:
        found = self._number(names, lambda value: value > 0, "a number of milliseconds above 0")
        return default_s if found is None else found / 1000

    def whole_number(self, *names: str, default: int) -> int:
        found = self._number(names, lambda value: value >= -1, "a number of bytes, or -1")
        return default if found is None else found

    def _number(self, names: tuple[str, ...], allowed: Callable[[int], bool], wanted: str) -> int | None:
        text = self.text(*names)
        if text is None:
            return None
        if not text.strip().removeprefix("-").isdecimal() or not allowed(int(text)):
            raise SetupError(f"{names[0]}={text}: give {wanted}")
        return int(text)
