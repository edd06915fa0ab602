"""Certificates for tests: an authority, and what it signs. EC keys, because they are made quickly."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


@dataclass(frozen=True)
class Authority:
    directory: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    certificate_file: Path

    @classmethod
    def make(cls, directory: Path, name: str = "ca") -> "Authority":
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder(_name(name), _name(name), key.public_key(), x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + 30 * _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        file = directory / f"{name}.pem"
        file.write_bytes(certificate.public_bytes(Encoding.PEM))
        return cls(directory, key, certificate, file)

    def issue(
        self, name: str, addresses: tuple[str, ...] = ("127.0.0.1",)
    ) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        names = [x509.IPAddress(ipaddress.ip_address(each)) for each in addresses]
        builder = (
            x509.CertificateBuilder(
                self.certificate.subject, _name(name), key.public_key(), x509.random_serial_number()
            )
            .not_valid_before(now - _DAY)
            .not_valid_after(now + 30 * _DAY)
            .add_extension(x509.SubjectAlternativeName([*names, x509.DNSName("localhost")]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )
        return key, builder.sign(self.key, hashes.SHA256())

    def store(self, name: str) -> Path:
        """A PEM file with a key and its certificate."""
        key, certificate = self.issue(name)
        path = self.directory / f"{name}.pem"
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        path.write_bytes(private + certificate.public_bytes(Encoding.PEM))
        return path
