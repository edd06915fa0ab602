"""Certificates for tests: an authority, and keys with certificates that it signs, as PEM and PKCS12 files.

Keys are elliptic (P-256), which are made in a millisecond; `rsa=True` makes an RSA key. Certificates are valid for
a year unless a test says otherwise. An authority is made once per process (`authority()`), or per test.
"""

import datetime
import functools
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

PASSWORD = "test-password"
"""The password of all PKCS12 files that this module writes."""

LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
_CLOCK_SKEW = datetime.timedelta(minutes=5)
_DAY = datetime.timedelta(days=1)

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True)
class Identity:
    """A key with its certificate, and the authority that signed it."""

    key: PrivateKey
    certificate: x509.Certificate
    issuer: x509.Certificate

    def key_pem(self, password: str | None = None) -> str:
        encryption: KeySerializationEncryption = (
            BestAvailableEncryption(password.encode()) if password else NoEncryption()
        )
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption).decode()

    @property
    def chain_pem(self) -> str:
        """The certificate and the authority's."""
        return _pem(self.certificate) + _pem(self.issuer)

    @property
    def pem(self) -> str:
        """Key and certificates in one text, as `ssl.keystore.location` needs them with type PEM."""
        return self.key_pem() + self.chain_pem

    def pkcs12(self, password: str = PASSWORD) -> bytes:
        return pkcs12.serialize_key_and_certificates(
            b"node", self.key, self.certificate, [self.issuer], BestAvailableEncryption(password.encode())
        )

    def write(self, directory: Path, name: str) -> "Files":
        """Writes `<name>.pem` (key and chain), `<name>.key`, `<name>.crt`, `<name>.p12`, and `<name>-ca.*`."""
        directory.mkdir(parents=True, exist_ok=True)
        files = Files(directory, name)
        files.keystore.write_text(self.pem)
        files.key.write_text(self.key_pem())
        files.certificates.write_text(self.chain_pem)
        files.keystore_p12.write_bytes(self.pkcs12())
        files.ca.write_text(_pem(self.issuer))
        files.truststore_p12.write_bytes(
            pkcs12.serialize_java_truststore(
                [pkcs12.PKCS12Certificate(self.issuer, b"ca")], BestAvailableEncryption(PASSWORD.encode())
            )
        )
        return files


@dataclass(frozen=True)
class Files:
    """The files of an identity."""

    directory: Path
    name: str

    @property
    def keystore(self) -> Path:
        """Key and certificates in one PEM file."""
        return self.directory / f"{self.name}.pem"

    @property
    def key(self) -> Path:
        return self.directory / f"{self.name}.key"

    @property
    def certificates(self) -> Path:
        return self.directory / f"{self.name}.crt"

    @property
    def keystore_p12(self) -> Path:
        return self.directory / f"{self.name}.p12"

    @property
    def ca(self) -> Path:
        return self.directory / f"{self.name}-ca.pem"

    @property
    def truststore_p12(self) -> Path:
        return self.directory / f"{self.name}-ca.p12"

    def properties(self, prefix: str = "") -> dict[str, str]:
        """The settings of Kafka (brokers, Java clients) for these PEM files."""
        return {
            f"{prefix}ssl.keystore.type": "PEM",
            f"{prefix}ssl.keystore.location": str(self.keystore),
            f"{prefix}ssl.truststore.type": "PEM",
            f"{prefix}ssl.truststore.location": str(self.ca),
        }

    def pkcs12_properties(self, prefix: str = "") -> dict[str, str]:
        """The same for the PKCS12 files."""
        return {
            f"{prefix}ssl.keystore.type": "PKCS12",
            f"{prefix}ssl.keystore.location": str(self.keystore_p12),
            f"{prefix}ssl.keystore.password": PASSWORD,
            f"{prefix}ssl.truststore.type": "PKCS12",
            f"{prefix}ssl.truststore.location": str(self.truststore_p12),
            f"{prefix}ssl.truststore.password": PASSWORD,
        }


class Authority:
    """A certificate authority."""

    def __init__(self, name: str = "test authority", *, rsa: bool = False) -> None:
        self._key = _new_key(rsa)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.datetime.now(datetime.UTC)
        self.certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _CLOCK_SKEW)
            .not_valid_after(now + 3650 * _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def pem(self) -> str:
        return _pem(self.certificate)

    def sign(
        self,
        subject: x509.Name | str,
        *,
        hosts: Sequence[str] = (),
        valid_for: datetime.timedelta = 365 * _DAY,
        rsa: bool = False,
    ) -> Identity:
        """A new key and its certificate. A text as the subject is its common name, with organization `Millstream`."""
        if isinstance(subject, str):
            subject = x509.Name(
                [
                    x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Millstream"),
                    x509.NameAttribute(NameOID.COMMON_NAME, subject),
                ]
            )
        key = _new_key(rsa)
        end = datetime.datetime.now(datetime.UTC) + valid_for
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(datetime.datetime.now(datetime.UTC), end) - _CLOCK_SKEW)
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False
            )
        return Identity(key, builder.sign(self._key, hashes.SHA256()), self.certificate)

    def node(self, name: str = "node", *, hosts: Sequence[str] = LOCAL_HOSTS) -> Identity:
        """The identity of a broker or controller on this machine."""
        return self.sign(name, hosts=hosts)

    def client(self, name: str = "client") -> Identity:
        return self.sign(name)


@functools.cache
def authority() -> Authority:
    """The authority that tests share."""
    return Authority()


def _new_key(is_rsa: bool) -> PrivateKey:
    if is_rsa:
        return rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return ec.generate_private_key(ec.SECP256R1())


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=not signs_certificates,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()
