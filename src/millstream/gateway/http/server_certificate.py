"""The certificate of the HTTPS listener, taken over again when its files change.

New connections get the new certificate; open ones go on. Files that do not fit together (one is written before the
other) are tried again at the next look, and the old certificate stays in use.
"""

import asyncio
import logging
import os
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from millstream.gateway.http.configuration import GatewayError, check_certificate, check_client_ca

_LOOK_EVERY_SECONDS = 2.0
_DAY_SECONDS = 86_400.0
State = tuple[tuple[int, int, int] | None, ...]
"""Time, size and inode of each file."""
_log = logging.getLogger("millstream.gateway.tls")


class ServerCertificate:
    def __init__(self, certificate: str, key: str, client_ca: str | None = None) -> None:
        self._files = (certificate, key)
        self._client_ca = client_ca
        self._seen = self._state()
        self._refused: State | None = None
        self._days_reported: int | None = None
        self.context = self._current = self._load()
        """Of the listener, for its whole life. Its callback gives each handshake the current one: a context that is
        changed in place would keep the authorities that were removed from the file."""
        self.context.sni_callback = self._choose
        self.ends_at = _ends_at(certificate)
        """When the first certificate of the chain expires, in seconds since 1970."""

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(*self._files)
        if self._client_ca is not None:
            context.load_verify_locations(self._client_ca)
            context.verify_mode = ssl.CERT_OPTIONAL
            # A resumed session is not verified again, whatever has changed since.
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0
        return context

    def _choose(self, handshake: ssl.SSLObject, name: str | None, listener: ssl.SSLContext) -> None:
        handshake.context = self._current

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        looking = asyncio.create_task(self._look_forever())
        try:
            yield
        finally:
            looking.cancel()

    async def _look_forever(self) -> None:
        while True:
            self.report_expiry(time.time())
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
            self.look()

    def look(self) -> bool:
        """Takes over changed files; whether it did."""
        state = self._state()
        if state == self._seen:
            return False
        try:
            check_certificate(*self._files)
            check_client_ca(self._client_ca, self._files[0])
            self._current, self.ends_at = self._load(), _ends_at(self._files[0])
        except (GatewayError, OSError, ValueError) as error:
            if state != self._refused:
                _log.warning("certificate_not_replaced reason=%s", error)
                self._refused = state
            return False
        self._seen = state
        self._days_reported = None
        _log.info("certificate_replaced file=%s", self._files[0])
        return True

    def report_expiry(self, now: float) -> None:
        """A log line when 30 days, 7 days and 1 day are left, and when the certificate has expired."""
        left = (self.ends_at - now) / _DAY_SECONDS
        step = next((days for days in (0, 1, 7, 30) if left < days), None)
        if step is None or (self._days_reported is not None and self._days_reported <= step):
            return
        self._days_reported = step
        if step == 0:
            _log.error("certificate_expired file=%s: replace it now", self._files[0])
        else:
            _log.warning("certificate_expires_soon file=%s days=%d: replace it", self._files[0], left)

    def _state(self) -> State:
        return tuple(_stamp(file) for file in (*self._files, self._client_ca) if file is not None)


def _ends_at(certificate: str) -> float:
    from cryptography import x509

    with open(certificate, "rb") as file:
        chain = x509.load_pem_x509_certificates(file.read())
    return min(each.not_valid_after_utc.timestamp() for each in chain)


def _stamp(file: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
