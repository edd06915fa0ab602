"""An object store for code without an event loop: each call waits for its result. Safe to use from several threads."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from millstream.node.runtime.object_store import UNLIMITED, open_store
from millstream.node.storage.object_store import NoObjectError, ObjectStore, StoreError, StoreRates

T = TypeVar("T")


class BackupError(Exception):
    """What is wrong, and what to do."""


class BlockingStore:
    def __init__(self, url: str, rate: int | None = None) -> None:
        """`rate`: bytes per second, for writing and for reading."""
        self.url = url
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="millstream-backup", daemon=True)
        self._thread.start()
        rates = StoreRates(lambda: rate or UNLIMITED, lambda: rate or UNLIMITED)
        try:
            self.store: ObjectStore = open_store(url, self._loop, rates)
        except (ValueError, OSError) as error:
            self._stop_loop()
            raise BackupError(f"{url} cannot be used: {str(error).removeprefix('millstream.tier.url=')}") from None

    def close(self) -> None:
        self.store.close()
        self._stop_loop()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a call of the store. BackupError if the store fails; NoObjectError passes."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except NoObjectError:
            raise
        except StoreError as error:
            raise BackupError(f"{self.url} cannot be used: {error}") from None
