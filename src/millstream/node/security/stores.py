"""Key stores and trust stores: private keys and certificates in PEM and PKCS12, from files and from settings.

Every problem is a ConfigError that names the setting and says what to do. No message has a key or a password.
"""

import os
import re

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, pkcs12

from millstream.common.lazy_dataclass import dataclass
from millstream.config.broker_config import ListenerConfig
from millstream.config.setting import ConfigError, Setting
from millstream.config.table import ssl as settings

_PEM = re.compile(r"-+BEGIN ([A-Z0-9 ]+)-+\s*((?:[A-Za-z0-9+/=]|\s)*)-+END \1-+")
_JKS_MAGIC = b"\xfe\xed\xfe\xed"
_LARGEST_FILE_BYTES = 16 << 20
_LINE = 64

PrivateKey = RSAPrivateKey | EllipticCurvePrivateKey | Ed25519PrivateKey | Ed448PrivateKey


@dataclass(frozen=True, slots=True)
class KeyStore:
    """A key with its certificates: the own one, then its chain."""

    key: PrivateKey
    certificates: tuple[x509.Certificate, ...]

    @property
    def certificate(self) -> x509.Certificate:
        return self.certificates[0]


def key_store(config: ListenerConfig) -> KeyStore | None:
    """The key store of a listener; None if there is none."""
    location, kind = config[settings.SSL_KEYSTORE_LOCATION], config[settings.SSL_KEYSTORE_TYPE]
    key, chain = config[settings.SSL_KEYSTORE_KEY], config[settings.SSL_KEYSTORE_CERTIFICATE_CHAIN]
    if key or chain:
        if kind != "PEM":
            raise _refused(settings.SSL_KEYSTORE_KEY, "needs ssl.keystore.type=PEM")
        if location:
            raise _refused(settings.SSL_KEYSTORE_LOCATION, "is set together with ssl.keystore.key: remove one of them")
        if not key or not chain:
            raise _refused(
                settings.SSL_KEYSTORE_KEY if not key else settings.SSL_KEYSTORE_CERTIFICATE_CHAIN,
                "is missing: key and certificate chain are set together",
            )
        return _pem_key_store(key, chain, config[settings.SSL_KEY_PASSWORD], "ssl.keystore.key")
    if not location:
        return None
    if kind == "PEM":
        if config[settings.SSL_KEYSTORE_PASSWORD]:
            raise _refused(
                settings.SSL_KEYSTORE_PASSWORD, "is not for PEM files: use ssl.key.password for an encrypted key"
            )
        text = _read(settings.SSL_KEYSTORE_LOCATION, location).decode("ascii", errors="replace")
        return _pem_key_store(text, text, config[settings.SSL_KEY_PASSWORD], location)
    content = _pkcs12_file(settings.SSL_KEYSTORE_LOCATION, location)
    password = config[settings.SSL_KEYSTORE_PASSWORD]
    opened = _open_pkcs12(content, password, settings.SSL_KEYSTORE_LOCATION, location)
    if opened.key is None or opened.cert is None:
        raise _refused(settings.SSL_KEYSTORE_LOCATION, f"{location} has no private key with a certificate")
    chain_of = _ordered(opened.cert.certificate, [each.certificate for each in opened.additional_certs])
    return KeyStore(_supported(opened.key, location), chain_of)


def trusted_certificates(config: ListenerConfig) -> tuple[x509.Certificate, ...] | None:
    """The certificates of the trust store; None if there is none, which means those of the system."""
    location, kind = config[settings.SSL_TRUSTSTORE_LOCATION], config[settings.SSL_TRUSTSTORE_TYPE]
    text = config[settings.SSL_TRUSTSTORE_CERTIFICATES]
    if text:
        if kind != "PEM":
            raise _refused(settings.SSL_TRUSTSTORE_CERTIFICATES, "needs ssl.truststore.type=PEM")
        if location:
            raise _refused(
                settings.SSL_TRUSTSTORE_LOCATION, "is set together with ssl.truststore.certificates: remove one of them"
            )
        return _certificates(text, settings.SSL_TRUSTSTORE_CERTIFICATES, "ssl.truststore.certificates")
    if not location:
        return None
    if kind == "PEM":
        if config[settings.SSL_TRUSTSTORE_PASSWORD]:
            raise _refused(settings.SSL_TRUSTSTORE_PASSWORD, "is not for PEM files: remove it")
        content = _read(settings.SSL_TRUSTSTORE_LOCATION, location)
        return _certificates(content.decode("ascii", errors="replace"), settings.SSL_TRUSTSTORE_LOCATION, location)
    opened = _open_pkcs12(
        _pkcs12_file(settings.SSL_TRUSTSTORE_LOCATION, location),
        config[settings.SSL_TRUSTSTORE_PASSWORD],
        settings.SSL_TRUSTSTORE_LOCATION,
        location,
    )
    own = (opened.cert.certificate,) if opened.cert is not None else ()
    found = (*own, *(each.certificate for each in opened.additional_certs))
    if not found:
        raise _refused(settings.SSL_TRUSTSTORE_LOCATION, f"{location} has no certificate")
    return found


def store_files(config: ListenerConfig) -> tuple[str, ...]:
    """The files of both stores, which may change while the node runs."""
    locations = (config[settings.SSL_KEYSTORE_LOCATION], config[settings.SSL_TRUSTSTORE_LOCATION])
    return tuple(location for location in locations if location)


# PEM


def _pem_key_store(key_text: str, chain_text: str, password: str | None, place: str) -> KeyStore:
    keys = [(label, body) for label, body in _PEM.findall(key_text) if label.endswith("PRIVATE KEY")]
    if len(keys) != 1:
        raise ConfigError(
            f"{place}: {len(keys) or 'no'} private key found in PEM format (-----BEGIN PRIVATE KEY-----); exactly one "
            "is needed",
            name=settings.SSL_KEYSTORE_LOCATION.name,
        )
    label, body = keys[0]
    is_encrypted = label.startswith("ENCRYPTED")
    if is_encrypted and not password:
        raise ConfigError(
            f"{place}: the private key is encrypted: set ssl.key.password", name=settings.SSL_KEY_PASSWORD.name
        )
    try:
        key = load_pem_private_key(
            _armoured(label, body).encode(), password.encode() if password and is_encrypted else None
        )
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # The message of the library is not passed on: it may have parts of the key.
        hint = "ssl.key.password is wrong, or the key is damaged" if is_encrypted else "is it PKCS8?"
        raise ConfigError(
            f"{place}: the private key cannot be read: {hint}", name=settings.SSL_KEYSTORE_LOCATION.name
        ) from None
    return KeyStore(_supported(key, place), _certificates(chain_text, settings.SSL_KEYSTORE_LOCATION, place))


def _supported(key: object, place: str) -> PrivateKey:
    if not isinstance(key, PrivateKey):
        raise ConfigError(
            f"{place}: a private key of this type is not supported: use RSA, EC or Ed25519",
            name=settings.SSL_KEYSTORE_LOCATION.name,
        )
    return key


def _certificates(text: str, setting: Setting[str | None], place: str) -> tuple[x509.Certificate, ...]:
    found = []
    for label, body in _PEM.findall(text):
        if label != "CERTIFICATE":
            continue
        try:
            found.append(x509.load_pem_x509_certificate(_armoured(label, body).encode()))
        except ValueError as error:
            raise _refused(setting, f"{place}: certificate {len(found) + 1} cannot be read: {error}") from None
    if not found:
        raise _refused(setting, f"{place}: no certificate found in PEM format (-----BEGIN CERTIFICATE-----)")
    return tuple(found)


def _armoured(label: str, body: str) -> str:
    """PEM with lines: the lines of a text in a `.properties` file may have been joined."""
    packed = "".join(body.split())
    lines = "\n".join(packed[at : at + _LINE] for at in range(0, len(packed), _LINE))
    return f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n"


# PKCS12


def _pkcs12_file(setting: Setting[str | None], location: str) -> bytes:
    content = _read(setting, location)
    if content.startswith(_JKS_MAGIC):
        raise _refused(
            setting,
            f"{location} has the old format JKS: convert it with `keytool -importkeystore -srckeystore {location} "
            f"-destkeystore {location}.p12 -deststoretype PKCS12`, and set the type PKCS12",
        )
    if content.lstrip().startswith(b"-----BEGIN"):
        kind = setting.name.replace("location", "type")
        raise _refused(setting, f"{location} has the format PEM: set {kind}=PEM")
    return content


def _open_pkcs12(
    content: bytes, password: str | None, setting: Setting[str | None], location: str
) -> pkcs12.PKCS12KeyAndCertificates:
    try:
        return pkcs12.load_pkcs12(content, password.encode() if password else None)
    except (ValueError, UnsupportedAlgorithm):
        kind = setting.name.replace("location", "password")
        raise _refused(setting, f"{location} cannot be opened: {kind} is wrong, or it is not PKCS12") from None


def _ordered(own: x509.Certificate, others: list[x509.Certificate]) -> tuple[x509.Certificate, ...]:
    """The chain from the own certificate up; other certificates of the file are left out."""
    chain = [own]
    while True:
        issuer = next((each for each in others if each.subject == chain[-1].issuer and each not in chain), None)
        if issuer is None:
            return tuple(chain)
        chain.append(issuer)


def _read(setting: Setting[str | None], location: str) -> bytes:
    if os.path.exists(location) and not os.path.isfile(location):
        raise _refused(setting, f"{location} is not a file")  # reading a pipe or a device may never end
    try:
        with open(location, "rb") as file:
            return file.read(_LARGEST_FILE_BYTES)
    except OSError as error:
        raise _refused(setting, f"{location} cannot be read: {error.strerror}") from None


def _refused(setting: Setting[str | None], reason: str) -> ConfigError:
    return ConfigError(f"{setting.name}: {reason}", name=setting.name)
