"""TLS as the settings say: whom to trust, and with which certificate to be trusted."""

import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from millstream.raw_client.errors import SetupError

_VERSIONS = {"TLSV1.2": ssl.TLSVersion.TLSv1_2, "TLSV1.3": ssl.TLSVersion.TLSv1_3}
_JKS, _DER = b"\xfe\xed\xfe\xed", b"\x30"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Certificates by file or as text; without any to trust, the system's."""

    ca_location: str | None = None
    ca_pem: str | None = None
    certificate_location: str | None = None
    certificate_pem: str | None = None
    key_location: str | None = None
    key_pem: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    checks_host: bool = True
    checks_certificate: bool = True
    protocols: tuple[str, ...] = ()
    newest_protocol: str | None = None
    ciphers: str | None = None


def make_context(settings: TlsSettings) -> ssl.SSLContext:
    """Reads all files now, so that a wrong one is known before anybody connects."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.checks_host and settings.checks_certificate
    if not settings.checks_certificate:
        context.verify_mode = ssl.CERT_NONE
    _restrict(context, settings)
    _trust(context, settings)
    _identify(context, settings)
    return context


def _restrict(context: ssl.SSLContext, settings: TlsSettings) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.protocols:
        spoken = [_version("ssl.enabled.protocols", each) for each in settings.protocols]
        context.minimum_version, context.maximum_version = min(spoken), max(spoken)
    if settings.newest_protocol and settings.newest_protocol.upper() not in ("TLS", "SSL"):
        newest = _version("ssl.protocol", settings.newest_protocol)
        context.maximum_version = min(newest, max(_VERSIONS.values()))
    if settings.ciphers:
        try:
            context.set_ciphers(settings.ciphers.replace(",", ":"))
        except ssl.SSLError as error:
            raise SetupError(
                f"ssl.cipher.suites={settings.ciphers}: OpenSSL knows none of them; `openssl ciphers` lists its names"
            ) from error


def _version(setting: str, name: str) -> ssl.TLSVersion:
    found = _VERSIONS.get(name.upper())
    if found is None:
        raise SetupError(f"{setting}={name}: give TLSv1.2 or TLSv1.3")
    return found


def _trust(context: ssl.SSLContext, settings: TlsSettings) -> None:
    if settings.ca_location is None and settings.ca_pem is None:
        context.load_default_certs()
        return
    where = settings.ca_location or "ssl.ca.pem"
    try:
        if settings.ca_location is not None:
            _check_pem(settings.ca_location, "ssl.truststore.location (ssl.ca.location)", may_be_directory=True)
            if os.path.isdir(settings.ca_location):
                context.load_verify_locations(capath=settings.ca_location)
            else:
                context.load_verify_locations(cafile=settings.ca_location)
        if settings.ca_pem is not None:
            context.load_verify_locations(cadata=settings.ca_pem)
    except (ssl.SSLError, ValueError) as error:
        raise SetupError(f"{where}: no certificates in PEM format in it ({error})") from error


def _identify(context: ssl.SSLContext, settings: TlsSettings) -> None:
    certificate, key = settings.certificate_location, settings.key_location
    if certificate is None and settings.certificate_pem is None:
        if key is not None or settings.key_pem is not None:
            raise SetupError("a key without a certificate: give ssl.certificate.location or ssl.keystore.location too")
        return
    if certificate is not None:
        _check_pem(certificate, "ssl.keystore.location (ssl.certificate.location)")
    if key is not None:
        _check_pem(key, "ssl.key.location")
    password = settings.key_password or ""
    with _file(certificate, settings.certificate_pem) as chain, _file(key, settings.key_pem) as key_file:
        try:
            # A callable, even where no password was given: OpenSSL would ask at the terminal otherwise.
            context.load_cert_chain(chain or "", key_file, password=lambda: password)
        except (ssl.SSLError, ValueError) as error:
            shown = certificate or "the given certificate"
            raise SetupError(
                f"{shown}: certificate and key cannot be used ({getattr(error, 'reason', None) or error}):"
                " is the key in it or in ssl.key.location, does it belong to it, is ssl.key.password right?"
            ) from error


def _check_pem(path: str, setting: str, *, may_be_directory: bool = False) -> None:
    if may_be_directory and os.path.isdir(path):
        return
    try:
        with open(path, "rb") as file:
            head = file.read(4)
    except OSError as error:
        raise SetupError(f"{setting}={path}: {(error.strerror or str(error)).lower()}") from error
    if head == _JKS or head[:1] == _DER:
        kind = "a Java key store" if head == _JKS else "PKCS12 or DER"
        raise SetupError(
            f"{setting}={path} is {kind}, not PEM: `keytool -importkeystore -srckeystore FILE -destkeystore FILE.p12"
            " -deststoretype PKCS12` and `openssl pkcs12 -in FILE.p12 -out FILE.pem -nodes` make it one"
        )


@contextmanager
def _file(path: str | None, text: str | None) -> Iterator[str | None]:
    """Python reads keys from files only; what was given as text is in one that only we can read, for a moment."""
    if path is not None or text is None:
        yield path
        return
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(text)
        file.flush()
        yield file.name
