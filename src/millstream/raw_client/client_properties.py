"""One description of a connection for all clients: Kafka's client properties, from a file or a dictionary.

The names are those of Kafka's Java client and of librdkafka (`settings.USED`). From the description come:

- the settings of the raw client: the dictionary itself, for `Cluster(bootstrap, settings)`
- the settings of confluent-kafka and of `millstream.connect`: `librdkafka_settings(settings)`

Values may refer to secrets elsewhere (`common/secret_references.py`); `read_client_properties` replaces them. Settings
of producers and consumers in the description are ignored: it describes the connection only.
"""

from collections.abc import Callable, Mapping
from typing import Any

from millstream.common.bearer_tokens import TokenSource
from millstream.common.properties import PropertiesError, Property, parse_properties
from millstream.common.secret_references import SecretError, resolve_all
from millstream.raw_client.errors import SetupError
from millstream.raw_client.security import BEARER, SaslSettings, TlsSettings, bearer_token, pkcs12_store
from millstream.raw_client.settings import IGNORED, USED, parse_settings

_CREDENTIALS = frozenset(name for name in USED if name.startswith("sasl."))
_SASL_PROTOCOLS = {"PLAINTEXT": "SASL_PLAINTEXT", "SSL": "SASL_SSL"}
_TIMEOUTS = {
    "request.timeout.ms": "socket.timeout.ms",
    "socket.timeout.ms": "socket.timeout.ms",
    "socket.connection.setup.timeout.ms": "socket.connection.setup.timeout.ms",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "socket.send.buffer.bytes": "socket.send.buffer.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "socket.receive.buffer.bytes": "socket.receive.buffer.bytes",
    "socket.keepalive.enable": "socket.keepalive.enable",
    "client.id": "client.id",
}


def read_client_properties(path: str, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The settings of a connection in a file of client properties. SetupError names the file and the line."""
    items = _items(path)
    places = {item.name: item.place for item in items}
    try:
        values = resolve_all({item.name: item.value.strip() for item in items}, environment)
    except SecretError as error:
        raise SetupError(f"{path}: {error}") from error
    providers = [name for name in values if name.startswith("config.providers")]
    for name in providers:
        del values[name]
    for name in values:
        if name not in USED and name not in IGNORED:
            try:
                parse_settings({name: ""}, "", 1.0)  # for its message, with the closest name
            except SetupError as error:
                raise SetupError(f"{places[name]}: {error}") from None
    try:
        parse_settings(values, "", 30.0)
    except SetupError as error:
        raise SetupError(f"{path}: {error}") from None
    return {name: value for name, value in values.items() if name in USED}


def read_bootstrap(path: str) -> str | None:
    """`bootstrap.servers` of the file."""
    values = {item.name: item.value.strip() for item in _items(path)}
    return values.get("bootstrap.servers") or values.get("metadata.broker.list") or None


def _items(path: str) -> list[Property]:
    try:
        with open(path, encoding="utf-8") as file:
            return list(parse_properties(file.read(), path))
    except PropertiesError as error:
        raise SetupError(str(error)) from error
    except (OSError, UnicodeDecodeError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise SetupError(f"{path}: the client properties cannot be read: {reason}") from error


def as_user(settings: Mapping[str, str], username: str, password: str, mechanism: str | None = None) -> dict[str, str]:
    """The same connection with the credentials of another user. Without `mechanism` it stays, or is PLAIN."""
    given = settings.get("sasl.mechanism") or settings.get("sasl.mechanisms") or ""
    chosen = mechanism or (given if given.upper() not in ("", BEARER) else "PLAIN")
    return _with_sasl(settings, {"sasl.mechanism": chosen, "sasl.username": username, "sasl.password": password})


def with_token(settings: Mapping[str, str], token: str) -> dict[str, str]:
    """The same connection, authenticated by a bearer token (OAUTHBEARER)."""
    return _with_sasl(settings, {"sasl.mechanism": BEARER, "sasl.oauthbearer.token": token})


def _with_sasl(settings: Mapping[str, str], credentials: Mapping[str, str]) -> dict[str, str]:
    protocol = settings.get("security.protocol", "PLAINTEXT").upper()
    rest = {name: value for name, value in settings.items() if name not in _CREDENTIALS}
    return {**rest, "security.protocol": _SASL_PROTOCOLS.get(protocol, protocol), **credentials}


def librdkafka_settings(settings: Mapping[str, str]) -> dict[str, Any]:
    """The same connection for librdkafka: confluent-kafka, and `millstream.connect(bootstrap, settings=…)`.

    Differences of librdkafka: it cannot limit TLS versions, so a description with `ssl.enabled.protocols` or
    `ssl.protocol` other than the usual ones is refused rather than weakened.
    """
    wire = parse_settings(settings, "", 30.0)
    result: dict[str, Any] = {"security.protocol": wire.protocol.name.lower()}
    for name, renamed in _TIMEOUTS.items():
        value = settings.get(name)
        if value not in (None, "", "-1"):
            result[renamed] = value
    if wire.tls is not None:
        result |= _tls(wire.tls)
    if wire.sasl is not None:
        result |= _sasl(wire.sasl, wire.request_timeout_s)
    return result


def _tls(tls: TlsSettings) -> dict[str, Any]:
    wanted = {each.upper() for each in tls.protocols} or {"TLSV1.2", "TLSV1.3"}
    if "TLSV1.3" not in wanted or (tls.newest_protocol or "TLSv1.3").upper() not in ("TLS", "SSL", "TLSV1.3"):
        raise SetupError(
            "ssl.enabled.protocols, ssl.protocol: librdkafka cannot be limited to old versions: remove them"
        )
    result: dict[str, Any] = {
        "ssl.endpoint.identification.algorithm": "https" if tls.checks_host else "none",
        "enable.ssl.certificate.verification": tls.checks_certificate,
    }
    if tls.ca_location is not None:
        name = "ssl.truststore.location (ssl.ca.location)"
        store = pkcs12_store(tls.ca_location, tls.ca_password, name, may_be_directory=True)
        if store is None:
            result["ssl.ca.location"] = tls.ca_location
        else:
            result["ssl.ca.pem"] = store.certificates_pem
    if tls.ca_pem is not None:
        result["ssl.ca.pem"] = tls.ca_pem
    if tls.certificate_location is not None:
        password = tls.store_password or tls.key_password
        if pkcs12_store(tls.certificate_location, password, "ssl.keystore.location") is not None:
            result["ssl.keystore.location"], result["ssl.keystore.password"] = tls.certificate_location, password or ""
        else:
            result["ssl.certificate.location"] = tls.certificate_location
            if tls.key_location is None and tls.key_pem is None:  # Java's PEM stores have key and certificates
                result["ssl.key.location"] = tls.certificate_location
    optional = {
        "ssl.certificate.pem": tls.certificate_pem,
        "ssl.key.location": tls.key_location,
        "ssl.key.pem": tls.key_pem,
        "ssl.key.password": tls.key_password,
        "ssl.cipher.suites": None if tls.ciphers is None else tls.ciphers.replace(",", ":"),
    }
    return result | {name: value for name, value in optional.items() if value is not None}


def _sasl(sasl: SaslSettings, timeout_s: float) -> dict[str, Any]:
    if sasl.by_token:
        raise SetupError("sasl.jaas.config: librdkafka does not support tokenauth=true; the raw client and Java do")
    if sasl.bearer is not None:
        return {"sasl.mechanism": BEARER, "oauth_cb": _token_callback(sasl.bearer, timeout_s)}
    return {"sasl.mechanism": sasl.mechanism, "sasl.username": sasl.username, "sasl.password": sasl.password}


def _token_callback(source: TokenSource, timeout_s: float) -> Callable[[str], tuple[str, float]]:
    def token(_: str) -> tuple[str, float]:
        return bearer_token(source, timeout_s)

    return token
