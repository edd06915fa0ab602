"""Settings of TLS: keys and certificates, protocols and ciphers, client certificates, limits on handshakes.

All but the limits can differ between listeners, by `listener.name.<listener>.ssl.…`. The certificates are read in
`node/security/certificates.py`.
"""

from typing import Any

from millstream.config.setting import (
    Importance,
    Setting,
    SettingType,
    Update,
    at_least,
    boolean,
    declared,
    integer,
    listed,
    one_of,
    optional_class,
    optional_string,
    some_of,
    string,
)

TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")
_STORE_TYPES = one_of("JKS", "PKCS12", "PEM")


def _secret(name: str, explanation: str, update: Update = Update.PER_BROKER) -> Setting[str | None]:
    setting: Setting[Any] = Setting(
        name=name, type=SettingType.PASSWORD, default=None, nullable=True, explanation=explanation, update=update
    )
    return setting


SSL_KEYSTORE_TYPE = string(
    "ssl.keystore.type",
    "JKS",
    "The format of the key store: `PEM` or `PKCS12`. With `JKS`, a file in the format PKCS12 is accepted too; the old "
    "format JKS is refused, with the command that converts it.",
    allowed=_STORE_TYPES,
    update=Update.PER_BROKER,
)
SSL_KEYSTORE_LOCATION = optional_string(
    "ssl.keystore.location",
    "The file with this node's key and certificates. A changed file is taken over within seconds.",
    importance=Importance.HIGH,
    update=Update.PER_BROKER,
)
SSL_KEYSTORE_PASSWORD = _secret("ssl.keystore.password", "The password of a PKCS12 key store.")
SSL_KEY_PASSWORD = _secret("ssl.key.password", "The password of the private key in a PEM file or PEM text.")
SSL_KEYSTORE_KEY = _secret("ssl.keystore.key", "The private key as PEM text (PKCS8), with `ssl.keystore.type=PEM`.")
SSL_KEYSTORE_CERTIFICATE_CHAIN = _secret(
    "ssl.keystore.certificate.chain",
    "The certificate and its chain as PEM text, with `ssl.keystore.type=PEM`.",
)
SSL_TRUSTSTORE_TYPE = string(
    "ssl.truststore.type",
    "JKS",
    "The format of the trust store: `PEM` or `PKCS12`. With `JKS`, a file in the format PKCS12 is accepted too.",
    allowed=_STORE_TYPES,
    update=Update.PER_BROKER,
)
SSL_TRUSTSTORE_LOCATION = optional_string(
    "ssl.truststore.location",
    "The file with the certificates that this node trusts. Without it, those of the operating system.",
    importance=Importance.HIGH,
    update=Update.PER_BROKER,
)
SSL_TRUSTSTORE_PASSWORD = _secret("ssl.truststore.password", "The password of a PKCS12 trust store.")
SSL_TRUSTSTORE_CERTIFICATES = _secret(
    "ssl.truststore.certificates",
    "The trusted certificates as PEM text, with `ssl.truststore.type=PEM`.",
)
SSL_CLIENT_AUTH = string(
    "ssl.client.auth",
    "none",
    "Client certificates: `required`, `requested` (a client may have none) or `none`. A listener with SASL takes only "
    "`listener.name.<listener>.ssl.client.auth` (KIP-684).",
    allowed=one_of("required", "requested", "none"),
)
SSL_PRINCIPAL_MAPPING_RULES = string(
    "ssl.principal.mapping.rules",
    "DEFAULT",
    "Rules that turn the name in a client certificate into a principal, separated by commas: "
    "`RULE:pattern/replacement/`, with `L` or `U` at the end for lower or upper case, or `DEFAULT` for the whole name. "
    "The first rule whose pattern matches is used. Patterns are RE2's.",
    importance=Importance.LOW,
)
SSL_ENABLED_PROTOCOLS = listed(
    "ssl.enabled.protocols",
    TLS_VERSIONS,
    "The versions of TLS that are accepted.",
    allowed=some_of(*TLS_VERSIONS),
)
SSL_PROTOCOL = string(
    "ssl.protocol",
    "TLSv1.3",
    "The newest version of TLS that is offered, if `ssl.enabled.protocols` has it.",
    allowed=one_of("TLS", *TLS_VERSIONS),
)
SSL_CIPHER_SUITES = listed(
    "ssl.cipher.suites",
    (),
    "The cipher suites, by the names of Java (TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256) or OpenSSL. Empty: OpenSSL's "
    "strong ones.",
)
SSL_ENDPOINT_IDENTIFICATION_ALGORITHM = string(
    "ssl.endpoint.identification.algorithm",
    "https",
    "Connections to other nodes check that the certificate has the host's name or address. Empty: no check.",
    allowed=one_of("https", "HTTPS", ""),
    importance=Importance.LOW,
)
SSL_ALLOW_DN_CHANGES = boolean(
    "ssl.allow.dn.changes",
    False,
    "A new certificate, taken over while the node runs, may have another subject.",
    importance=Importance.LOW,
)
SSL_ALLOW_SAN_CHANGES = boolean(
    "ssl.allow.san.changes",
    False,
    "A new certificate, taken over while the node runs, may lack host names of the one before it.",
    importance=Importance.LOW,
)
SSL_ENGINE_FACTORY_CLASS = optional_class(
    "ssl.engine.factory.class",
    "The Java class that makes TLS engines.",
    importance=Importance.LOW,
    only_default="Java classes cannot be loaded",
)
HANDSHAKE_TIMEOUT_MS = integer(
    "millstream.ssl.handshake.timeout.ms",
    10_000,
    "A connection whose TLS handshake takes longer is closed. Millstream only.",
    unit="ms",
    allowed=at_least(1),
)
MAX_HANDSHAKES = integer(
    "millstream.ssl.max.handshakes",
    1_000,
    "The maximum number of TLS handshakes under way on one listener; one IP address can have a quarter of it. Further "
    "connections are closed. Millstream only.",
    allowed=at_least(1),
)
HANDSHAKE_RATE = integer(
    "millstream.ssl.handshake.rate",
    500,
    "The maximum number of TLS handshakes per second on one listener, with bursts of twice as many. Further "
    "connections wait for their turn, up to the time limit of a handshake. Millstream only.",
    allowed=at_least(1),
)
HANDSHAKE_RATE_PER_IP = integer(
    "millstream.ssl.handshake.rate.per.ip",
    200,
    "The same for the connections from one IP address. Millstream only.",
    allowed=at_least(1),
)

SETTINGS = declared(globals())
