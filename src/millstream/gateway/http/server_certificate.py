"""The certificate of the HTTPS listener, taken over again when its files change.

New connections get the new certificate; open ones go on. Files that do not fit together (one is written before the
other) are tried again at the next look, and the old certificate stays in use.
"""

import asyncio
import logging
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from millstream.gateway.http.configuration import GatewayError, check_certificate, check_client_ca

_LOOK_EVERY_S = 2.0
_log = logging.getLogger("millstream.gateway.tls")


class ServerCertificate:
    def __init__(self, certificate: str, key: str, client_ca: str | None = None) -> None:
        self._files = (certificate, key)
        self._client_ca = client_ca
        self._seen = self._state()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.load_cert_chain(certificate, key)
        if client_ca is not None:
            self.context.load_verify_locations(client_ca)
            self.context.verify_mode = ssl.CERT_OPTIONAL

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        looking = asyncio.create_task(self._look_forever())
        try:
            yield
        finally:
            looking.cancel()

    async def _look_forever(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            self.look()

    def look(self) -> bool:
        """Takes over changed files; whether it did."""
        state = self._state()
        if state == self._seen:
            return False
        try:
            check_certificate(*self._files)
            check_client_ca(self._client_ca, self._files[0])
            self.context.load_cert_chain(*self._files)
            if self._client_ca is not None:
                self.context.load_verify_locations(self._client_ca)
        except (GatewayError, ssl.SSLError, OSError) as error:
            _log.warning("certificate_not_replaced reason=%s", error)
            return False
        self._seen = state
        _log.info("certificate_replaced file=%s", self._files[0])
        return True

    def _state(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_stamp(file) for file in (*self._files, self._client_ca) if file is not None)


def _stamp(file: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
