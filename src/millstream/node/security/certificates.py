"""The certificates of one listener: TLS contexts made of its settings, and their replacement while the node runs.

`Certificates` serves accepted connections (`server`) and connections to the same listener of other nodes (`client`).
New ones come from changed files, from SIGHUP and from dynamic settings. They are checked first; a bad one is refused
with the reason, and the old one stays. Connections that exist keep the certificate of their handshake.
"""

import contextlib
import datetime
import hashlib
import logging
import os
import re
import secrets
import ssl
import tempfile
from collections.abc import Iterator, Sequence

from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from millstream.common.lazy_dataclass import dataclass
from millstream.config.broker_config import ListenerConfig
from millstream.config.setting import ConfigError
from millstream.config.table import ssl as settings
from millstream.config.table import ssl as ssl_settings
from millstream.formats.model.access_control import ANONYMOUS, USER, Principal
from millstream.node.security.core.principal_mapping import MappingError, PrincipalMapping, distinguished_name
from millstream.node.security.stores import KeyStore, key_store, store_files, trusted_certificates
from millstream.node.server.tls import HandshakeError, tls_reason

_CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_MOST_ROUND_TRIPS = 10
_TICKETS = 1

_log = logging.getLogger("millstream.security")


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """What is read and made of the settings at one time."""

    store: KeyStore | None
    server: ssl.SSLContext | None
    client: ssl.SSLContext
    checker: ssl.SSLContext
    """As `client`, without the check of host names."""
    mapping: PrincipalMapping
    stamp: "Stamp"

    @property
    def expires_at(self) -> datetime.datetime | None:
        """The end of the first certificate of the chain that expires."""
        if self.store is None:
            return None
        return min(each.not_valid_after_utc for each in self.store.certificates)


Stamp = tuple[tuple[str, int, int, int], ...]
"""The files of the stores with time, size and inode, by which a change is noticed."""


class Certificates:
    def __init__(self, name: str, config: ListenerConfig, *, is_server: bool = True, tickets: int = _TICKETS) -> None:
        """Reads the stores; ConfigError if they cannot be used. `is_server`: this node has the listener."""
        self.name = name
        self._config = config
        self._is_server = is_server
        self._tickets = tickets
        self._material = load(config, is_server=is_server, tickets=tickets)
        self._refused: str | None = None
        self._days_reported: int | None = None

    @property
    def context(self) -> ssl.SSLContext:
        """For accepted connections."""
        assert self._material.server is not None
        return self._material.server

    @property
    def client(self) -> "ClientCertificates":
        return ClientCertificates(self)

    @property
    def client_context(self) -> ssl.SSLContext:
        return self._material.client

    @property
    def expires_at(self) -> datetime.datetime | None:
        return self._material.expires_at

    @property
    def fingerprint(self) -> str | None:
        """The SHA-256 of the node's certificate, as `openssl x509 -fingerprint` computes it."""
        store = self._material.store
        return None if store is None else hashlib.sha256(store.certificate.public_bytes(Encoding.DER)).hexdigest()

    def principal(self, certificate: bytes | None) -> Principal:
        """The principal of a client with this certificate (DER). HandshakeError if no mapping rule applies."""
        if certificate is None:
            return ANONYMOUS
        try:
            name = distinguished_name(x509.load_der_x509_certificate(certificate).subject)
            return Principal(USER, self._material.mapping.name(name))
        except MappingError as error:
            raise HandshakeError(str(error)) from None
        except ValueError as error:
            raise HandshakeError(f"the name in the client's certificate cannot be read: {error}") from None

    # Replacement. These run in a thread, except `take`.

    def is_changed(self) -> bool:
        """Whether a file has changed since it was read."""
        return _stamp(store_files(self._config)) != self._material.stamp

    def prepare(self, config: ListenerConfig) -> TlsMaterial:
        """The material of new settings or files, checked against the current one. ConfigError says what is wrong."""
        fresh = load(config, is_server=self._is_server, tickets=self._tickets)
        _check_replacement(self._material, fresh, config)
        return fresh

    def take(self, config: ListenerConfig, fresh: TlsMaterial) -> None:
        """From here on new connections use the new material."""
        self._config = config
        self._material = fresh
        self._refused = None
        self._days_reported = None

    def reload(self, config: ListenerConfig | None = None) -> TlsMaterial | None:
        """The new material if it can be used; else a log line, once for each problem, and None."""
        try:
            return self.prepare(config or self._config)
        except ConfigError as error:
            if error.message != self._refused:
                self._refused = error.message
                _log.error("certificate_refused listener=%s reason=%s: the old one stays", self.name, error.message)
            return None

    @property
    def config(self) -> ListenerConfig:
        return self._config

    # Expiry

    def report_expiry(self, now: datetime.datetime) -> None:
        """A log line when 30 days, 7 days and 1 day are left, and when the certificate has expired."""
        expires_at = self.expires_at
        if expires_at is None:
            return
        left = expires_at - now
        step = next((days for days in (0, 1, 7, 30) if left < datetime.timedelta(days=days)), None)
        if step is None or (self._days_reported is not None and self._days_reported <= step):
            return
        self._days_reported = step
        if step == 0:
            _log.error("certificate_expired listener=%s at=%s: replace it now", self.name, expires_at.isoformat())
        else:
            _log.warning(
                "certificate_expires_soon listener=%s at=%s days=%d: replace it", self.name, expires_at.isoformat(),
                left.days,
            )  # fmt: skip


class ClientCertificates:
    """`ClientTls` of a `Certificates`."""

    def __init__(self, certificates: Certificates) -> None:
        self._certificates = certificates

    @property
    def context(self) -> ssl.SSLContext:
        return self._certificates.client_context


def load(config: ListenerConfig, *, is_server: bool, tickets: int = _TICKETS) -> TlsMaterial:
    """Reads and checks the stores of a listener. ConfigError names the setting and says what to do."""
    stamp = _stamp(store_files(config))
    store = key_store(config)
    trusted = trusted_certificates(config)
    rules = settings.SSL_PRINCIPAL_MAPPING_RULES
    try:
        mapping = PrincipalMapping(config[rules])
    except MappingError as error:
        raise ConfigError(f"{rules.name}: {error}", name=rules.name) from None
    server = None
    if is_server:
        if store is None:
            raise ConfigError(
                f"the listener {config.name} uses TLS and has no certificate: set ssl.keystore.location and "
                f"ssl.keystore.type (PEM or PKCS12), or the same with listener.name.{config.name.lower()}. in front",
                name=settings.SSL_KEYSTORE_LOCATION.name,
            )
        server = _context(config, ssl.PROTOCOL_TLS_SERVER, store, trusted)
        server.verify_mode = _CLIENT_AUTH[_client_auth(config)]
        server.num_tickets = tickets
    client = _context(config, ssl.PROTOCOL_TLS_CLIENT, store, trusted)
    client.check_hostname = config[settings.SSL_ENDPOINT_IDENTIFICATION_ALGORITHM].lower() == "https"
    checker = _context(config, ssl.PROTOCOL_TLS_CLIENT, store, trusted)
    checker.check_hostname = False
    return TlsMaterial(store, server, client, checker, mapping, stamp)


def _client_auth(config: ListenerConfig) -> str:
    """On a listener with SASL only its own setting counts, as in Kafka (KIP-684): with that of all listeners, clients
    of SASL would need certificates where only those of TLS listeners should."""
    if not config.uses_sasl:
        return config[settings.SSL_CLIENT_AUTH]
    own = config.own(settings.SSL_CLIENT_AUTH)
    if own is None and config[settings.SSL_CLIENT_AUTH] != "none":
        _log.warning(
            "setting_not_used listener=%s name=ssl.client.auth reason=it uses SASL: to have certificates too, set "
            "listener.name.%s.ssl.client.auth",
            config.name, config.name.lower(),
        )  # fmt: skip
    return own or "none"


def _context(
    config: ListenerConfig, protocol: int, store: KeyStore | None, trusted: tuple[x509.Certificate, ...] | None
) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    # As in Java, every certificate of the trust store is trusted, also one that is not an authority's root.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    _set_versions(context, config)
    if trusted is None:
        context.load_default_certs(
            ssl.Purpose.CLIENT_AUTH if protocol == ssl.PROTOCOL_TLS_SERVER else ssl.Purpose.SERVER_AUTH
        )
    else:
        context.load_verify_locations(
            cadata="".join(each.public_bytes(Encoding.PEM).decode() for each in dict.fromkeys(trusted))
        )
    if store is not None:
        _load_chain(context, store)
    return context


def _set_versions(context: ssl.SSLContext, config: ListenerConfig) -> None:
    enabled = set(config[settings.SSL_ENABLED_PROTOCOLS]) or set(settings.TLS_VERSIONS)
    if config[settings.SSL_PROTOCOL] == "TLSv1.2":
        enabled.discard("TLSv1.3")
    suites = config[settings.SSL_CIPHER_SUITES]
    if suites:
        older, has_newest = split_suites(suites)
        if not has_newest:
            enabled.discard("TLSv1.3")
        if not older:
            enabled.discard("TLSv1.2")
        else:
            try:
                context.set_ciphers(older)
            except ssl.SSLError:
                name = settings.SSL_CIPHER_SUITES.name
                raise ConfigError(
                    f"{name}={','.join(suites)}: OpenSSL has none of these cipher suites", name=name
                ) from None
    if not enabled:
        name = settings.SSL_ENABLED_PROTOCOLS.name
        raise ConfigError(
            f"{name}, ssl.protocol and ssl.cipher.suites together leave no version of TLS: change one of them",
            name=name,
        )
    context.minimum_version = ssl.TLSVersion.TLSv1_2 if "TLSv1.2" in enabled else ssl.TLSVersion.TLSv1_3
    context.maximum_version = ssl.TLSVersion.TLSv1_3 if "TLSv1.3" in enabled else ssl.TLSVersion.TLSv1_2


def _load_chain(context: ssl.SSLContext, store: KeyStore) -> None:
    """OpenSSL reads keys only from files: this one is in memory where the system has such files, and encrypted."""
    password = secrets.token_hex(32)
    key = store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password.encode()))
    content = key + b"".join(each.public_bytes(Encoding.PEM) for each in store.certificates)
    try:
        with _secret_file(content) as path:
            context.load_cert_chain(path, password=password)
    except ssl.SSLError as error:
        name = settings.SSL_KEYSTORE_LOCATION.name
        raise ConfigError(
            f"{name}: key and certificate cannot be used: {tls_reason(error)}; the first certificate must belong to "
            "the key",
            name=name,
        ) from None


@contextlib.contextmanager
def _secret_file(content: bytes) -> Iterator[str]:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("millstream-key", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.NamedTemporaryFile(prefix="millstream-") as file:  # only this user can read it
            file.write(content)
            file.flush()
            yield file.name


def _stamp(files: tuple[str, ...]) -> Stamp:
    stamps = []
    for path in files:
        try:
            status = os.stat(path)
        except OSError:
            continue  # being replaced; noticed when it is back
        stamps.append((path, status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(stamps)


def _check_replacement(old: TlsMaterial, new: TlsMaterial, config: ListenerConfig) -> None:
    """Kafka's rules for new certificates: subject and host names stay, and nodes that trusted it still do."""
    if old.store is None or new.store is None or new.server is None or old.server is None:
        return
    name = settings.SSL_KEYSTORE_LOCATION.name
    before, after = old.store.certificate, new.store.certificate
    now = datetime.datetime.now(datetime.UTC)
    if after.not_valid_after_utc < now <= before.not_valid_after_utc:
        raise ConfigError(
            f"{name}: the new certificate has expired ({after.not_valid_after_utc.isoformat()})", name=name
        )
    if before.subject != after.subject and not config[settings.SSL_ALLOW_DN_CHANGES]:
        raise ConfigError(
            f"{name}: the new certificate has another subject ({distinguished_name(after.subject)}, was "
            f"{distinguished_name(before.subject)}): ssl.allow.dn.changes=true allows it",
            name=name,
        )
    lost = _host_names(before) - _host_names(after)
    if lost and not config[settings.SSL_ALLOW_SAN_CHANGES]:
        raise ConfigError(
            f"{name}: the new certificate lacks {', '.join(sorted(lost))}: ssl.allow.san.changes=true allows it",
            name=name,
        )
    if _trusts(old.checker, old.server) is None and (reason := _trusts(new.checker, new.server)) is not None:
        raise ConfigError(
            f"{name}: the new certificate is not trusted by this node's own trust store: {reason}", name=name
        )


def _host_names(certificate: x509.Certificate) -> set[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {str(each.value) for each in names}


def _trusts(client: ssl.SSLContext, server: ssl.SSLContext) -> str | None:
    """None if a handshake between the two contexts succeeds; else the reason."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_side=False),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(_MOST_ROUND_TRIPS):
        done = 0
        for end in ends:
            try:
                end.do_handshake()
                done += 1
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                return tls_reason(error)
        if done == len(ends):
            return None
    return "the handshake does not end"


# Cipher suites
#
# By Java's names: `TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256` is `ECDHE-RSA-AES128-GCM-SHA256` for OpenSSL. OpenSSL's own
# names are accepted too. Python cannot choose among the suites of TLS 1.3, which are all strong: naming all of them
# enables TLS 1.3, naming none disables it, and naming some is refused.


TLS_1_3 = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
_JAVA = re.compile(
    r"TLS_(?:(?P<exchange>ECDHE|DHE)_)?(?P<signature>RSA|ECDSA)_WITH_"
    r"(?P<cipher>AES_(?:128|256)_(?:GCM|CBC|CCM)|CHACHA20_POLY1305)_?(?P<hash>SHA256|SHA384|SHA|8)?"
)


def split_suites(names: Sequence[str]) -> tuple[str, bool]:
    """The suites up to TLS 1.2 in OpenSSL's notation, and whether TLS 1.3 is enabled. Raises ConfigError."""
    setting = ssl_settings.SSL_CIPHER_SUITES.name
    newest = [name for name in names if name in TLS_1_3]
    older = [name for name in names if name not in TLS_1_3]
    if newest and len(newest) < len(TLS_1_3):
        raise ConfigError(
            f"{setting}={','.join(names)} is not supported: the suites of TLS 1.3 are enabled or disabled together; "
            f"name all of {', '.join(TLS_1_3)}, or none",
            name=setting,
        )
    return ":".join(_openssl(name) for name in older), bool(newest)


def _openssl(name: str) -> str:
    found = _JAVA.fullmatch(name)
    if found is None:
        if name.startswith("TLS_") or not re.fullmatch(r"[A-Z0-9-]+", name):
            setting = ssl_settings.SSL_CIPHER_SUITES.name
            raise ConfigError(
                f"{setting}: {name!r} is not a supported cipher suite; `openssl ciphers -stdname` lists them",
                name=setting,
            )
        return name
    exchange = f"{found['exchange']}-{found['signature']}-" if found["exchange"] else ""
    cipher, digest = found["cipher"], found["hash"]
    if cipher.startswith("CHACHA20"):
        return f"{exchange}CHACHA20-POLY1305"
    algorithm, bits, mode = cipher.split("_")
    suffix = {"CBC": "", "GCM": "-GCM", "CCM": "-CCM"}[mode]
    digest = {"8": "8", None: ""}.get(digest, f"-{digest}")
    return f"{exchange}{algorithm}{bits}{suffix}{digest}"
