"""PKCS12 stores (`.p12`, Java's default since version 9) as PEM text: key, certificates, trusted certificates.

`cryptography` is imported when a store is read, so that programs that use PEM files only do not wait for it.
"""

from dataclasses import field

from millstream.common.lazy_dataclass import dataclass


class StoreError(ValueError):
    """The store cannot be read. The message has the reason, never the password."""


@dataclass(frozen=True, slots=True)
class StoreContent:
    certificates_pem: str
    """The certificate of the key and the chain after it, or all trusted certificates of a store without a key."""
    key_pem: str | None = field(default=None, repr=False)
    """The key, not encrypted. None in a store of trusted certificates."""


def looks_like_pkcs12(content: bytes) -> bool:
    return content[:1] == b"\x30"


def read_pkcs12(content: bytes, password: str | None) -> StoreContent:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12

    try:
        store = pkcs12.load_pkcs12(content, None if password is None else password.encode())
    except ValueError:
        given = "the password is wrong, or it is no PKCS12 store" if password else "it needs a password"
        raise StoreError(given) from None
    found = [store.cert, *store.additional_certs]
    certificates = "".join(each.certificate.public_bytes(Encoding.PEM).decode() for each in found if each is not None)
    if not certificates:
        raise StoreError("it has no certificates")
    if store.key is None:
        return StoreContent(certificates)
    key = store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return StoreContent(certificates, key)
