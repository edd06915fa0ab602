"""The public keys for tokens of OAUTHBEARER, read from an address or a file and kept current.

They are read in a thread, never on the event loop: at the start, periodically, and when a token names an unknown key,
because the issuer may have rotated its keys. Such reads are limited to one per ten seconds, as any client can send
tokens with unknown keys. If keys cannot be read, the known ones stay.
"""

import asyncio
import logging
import urllib.request
from collections.abc import Callable
from urllib.error import URLError
from urllib.parse import unquote, urlsplit

from millstream.config.setting import ConfigError
from millstream.node.environment import Environment
from millstream.node.security.core.oauthbearer import (
    NO_KEYS,
    TokenClaims,
    TokenRules,
    VerificationKeys,
    check_token,
    find_key,
    read_keys,
    token_head,
)
from millstream.node.security.core.sasl import AuthenticationError

_LARGEST_DOCUMENT_BYTES = 1 << 20
_READ_TIMEOUT_SECONDS = 10.0
_UNKNOWN_KEY_PAUSE_SECONDS = 10.0
_log = logging.getLogger("millstream.security")


def check_url(url: str, *, name: str, schemes: tuple[str, ...]) -> str:
    """The address, checked; raises ConfigError."""
    parts = urlsplit(url)
    if parts.scheme not in schemes or (parts.scheme == "file" and (parts.netloc or not parts.path.startswith("/"))):
        allowed = " or ".join("file:///PATH" if scheme == "file" else f"{scheme}://HOST/PATH" for scheme in schemes)
        raise ConfigError(f"{name}={url[:200]} is not allowed: it must be {allowed}", name=name)
    return url


def file_of(url: str) -> str | None:
    """The path of a file:// address."""
    parts = urlsplit(url)
    return unquote(parts.path) if parts.scheme == "file" else None


def read_document(url: str) -> bytes:
    """The document at an address; blocks. Raises OSError or ValueError."""
    path = file_of(url)
    if path is not None:
        with open(path, "rb") as file:
            document = file.read(_LARGEST_DOCUMENT_BYTES + 1)
    else:
        request = urllib.request.Request(url, headers={"Accept": "application/json"})
        with urllib.request.urlopen(request, timeout=_READ_TIMEOUT_SECONDS) as response:
            if urlsplit(response.url).scheme != urlsplit(url).scheme:
                raise ValueError("the address leads to another scheme")
            document = response.read(_LARGEST_DOCUMENT_BYTES + 1)
    if len(document) > _LARGEST_DOCUMENT_BYTES:
        raise ValueError(f"the document has more than {_LARGEST_DOCUMENT_BYTES} bytes")
    return bytes(document)


class TokenVerifier:
    """Checks tokens with the keys of one address."""

    def __init__(
        self,
        url: str,
        rules: TokenRules,
        environment: Environment,
        *,
        refresh_s: float,
        first_backoff_s: float,
        longest_backoff_s: float,
        read: Callable[[str], bytes] = read_document,
    ) -> None:
        self._url = url
        self._rules = rules
        self._environment = environment
        self._refresh_s = refresh_s
        self._first_backoff_s = self._backoff_s = first_backoff_s
        self._longest_backoff_s = longest_backoff_s
        self._read = read
        self._keys: VerificationKeys = NO_KEYS
        self._reading: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._next_for_unknown_s = 0.0
        self._closed = False
        self.reads = 0
        self.failed_reads = 0

    def start(self) -> None:
        """Begins to read the keys."""
        self._refresh()

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._reading is not None:
            self._reading.cancel()

    def _refresh(self) -> "asyncio.Task[None]":
        if self._reading is None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._reading = self._environment.loop.create_task(self._read_keys())
        return self._reading

    async def _read_keys(self) -> None:
        pause_s = self._refresh_s
        try:
            self.reads += 1
            document = await self._environment.offload(lambda: self._read(self._url))
            self._keys = read_keys(document)
            self._backoff_s = self._first_backoff_s
        except (OSError, ValueError, URLError) as error:
            self.failed_reads += 1
            pause_s, self._backoff_s = self._backoff_s, min(2 * self._backoff_s, self._longest_backoff_s)
            _log.warning("jwks_failed url=%s error=%s retry_seconds=%.1f", self._url, error, pause_s)
        finally:
            self._reading = None
        if not self._closed:
            self._timer = self._environment.loop.call_later(pause_s, self._refresh)

    async def validate(self, token: str) -> TokenClaims:
        """The claims of a token; raises AuthenticationError."""
        head = token_head(token)
        key = find_key(head, self._keys)
        if key is None and self._may_read_again():
            await asyncio.wait((self._refresh(),), timeout=_READ_TIMEOUT_SECONDS)
            key = find_key(head, self._keys)
        if key is None:
            raise AuthenticationError("the key of the token is unknown")
        return check_token(token, head, key, self._rules, self._environment.clock.now_ms() / 1000)

    def _may_read_again(self) -> bool:
        """Whether an unknown key is a reason to read: once per ten seconds, and while a read is under way."""
        now_s = self._environment.loop.time()
        if self._reading is not None:
            return True
        if self._closed or now_s < self._next_for_unknown_s:
            return False
        self._next_for_unknown_s = now_s + _UNKNOWN_KEY_PAUSE_SECONDS
        return True
