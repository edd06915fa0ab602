"""Cipher suites by Java's names, as OpenSSL's names.

`TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256` is `ECDHE-RSA-AES128-GCM-SHA256` for OpenSSL. OpenSSL's own names are accepted
too. Python cannot choose among the suites of TLS 1.3, which are all strong: naming all of them enables TLS 1.3, naming
none disables it, and naming some is refused.
"""

import re
from collections.abc import Sequence

from millstream.config.setting import ConfigError
from millstream.config.table import ssl as ssl_settings

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
