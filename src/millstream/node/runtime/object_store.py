"""The object store of tiered storage: S3, Google Cloud Storage, Azure and directories, by obstore.

Calls run in threads of their own, so that a slow store takes no thread from the disk. Rates are limited there too.
obstore is imported when a store is opened: a node without tiered storage does not load it.
"""

import asyncio
import fcntl
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from millstream.node.storage.object_store import (
    ConflictError,
    NoObjectError,
    ObjectStore,
    StoredObject,
    StoreError,
    StoreRates,
    Version,
)

T = TypeVar("T")
_THREADS = 24
_WHOLE_BYTES = 8 << 20
"""Objects up to this size are one PUT, which fails if the object is there. Larger ones go up in parts; their names have
a random part, so that no other writer has the same."""
_PART_BYTES = 8 << 20
_ATTEMPTS_SECONDS = 20
UNLIMITED = (1 << 63) - 1


class Pace:
    """Delays a thread so that a rate is kept, over about a second."""

    def __init__(self, rate: Callable[[], int]) -> None:
        self._rate = rate
        self._lock = threading.Lock()
        self._free_at = 0.0

    def take(self, size: int) -> None:
        rate = self._rate()
        if rate >= UNLIMITED:
            return
        with self._lock:
            now = time.monotonic()
            begin = max(self._free_at, now - 1.0)
            self._free_at = begin + size / rate
            wait = self._free_at - now
        if wait > 0:
            time.sleep(wait)


class ThreadedStore:
    """A store of obstore. Subclasses write conditionally."""

    def __init__(self, store: Any, loop: asyncio.AbstractEventLoop, rates: StoreRates) -> None:
        self._store = store
        self._loop = loop
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="millstream-tier")
        self._writing = Pace(rates.write)
        self._reading = Pace(rates.read)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def create(self, name: str, parts: Callable[[], Iterator[bytes]], size: int) -> None:
        await self._run(lambda: self._create(name, parts, size))

    def _create(self, name: str, parts: Callable[[], Iterator[bytes]], size: int) -> None:
        import obstore
        from obstore.exceptions import BaseError

        paced = self._paced(parts())
        try:
            if size <= _WHOLE_BYTES:
                obstore.put(self._store, name, b"".join(paced), mode="create")
            else:
                obstore.put(self._store, name, paced, use_multipart=True, chunk_size=_PART_BYTES, max_concurrency=2)
        except BaseError:
            # The request may have been successful, and only its response lost. A repeated request then fails.
            if not self._has(name, size):
                raise

    def _has(self, name: str, size: int) -> bool:
        import obstore
        from obstore.exceptions import BaseError

        try:
            return obstore.head(self._store, name)["size"] == size
        except (BaseError, OSError):
            return False

    def _paced(self, parts: Iterator[bytes]) -> Iterator[bytes]:
        for part in parts:
            self._writing.take(len(part))
            yield part

    async def read(self, name: str, position: int, length: int) -> bytes:
        import obstore

        def get() -> bytes:
            self._reading.take(length)
            return bytes(obstore.get_range(self._store, name, start=position, length=length))

        return await self._run(get)

    async def read_whole(self, name: str) -> tuple[bytes, Version]:
        import obstore

        def get() -> tuple[bytes, Version]:
            found = obstore.get(self._store, name)
            return bytes(found.bytes()), str(found.meta["e_tag"])

        return await self._run(get)

    async def replace(self, name: str, data: bytes, version: Version | None) -> Version:
        return await self._run(lambda: self._replace(name, data, version))

    def _replace(self, name: str, data: bytes, version: Version | None) -> Version:
        import obstore

        mode: Any = "create" if version is None else {"e_tag": version}
        return str(obstore.put(self._store, name, data, mode=mode)["e_tag"])

    async def delete(self, names: Sequence[str]) -> None:
        import obstore
        from obstore.exceptions import NotFoundError

        def delete() -> None:
            for name in names:
                try:
                    obstore.delete(self._store, name)
                except (NotFoundError, FileNotFoundError):
                    pass

        await self._run(delete)

    async def list(self, prefix: str) -> list[StoredObject]:
        import obstore

        def collect() -> list[StoredObject]:
            return [
                StoredObject(item["path"], item["size"], int(item["last_modified"].timestamp() * 1000))
                for rows in obstore.list(self._store, prefix=prefix or None)
                for item in rows
            ]

        return await self._run(collect)

    async def _run(self, function: Callable[[], T]) -> T:
        from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError, PreconditionError

        def call() -> T:
            try:
                return function()
            except (NotFoundError, FileNotFoundError) as error:
                raise NoObjectError(_short(error)) from None
            except (AlreadyExistsError, FileExistsError, PreconditionError) as error:
                raise ConflictError(_short(error)) from None
            except (BaseError, OSError, ValueError) as error:
                raise StoreError(_short(error)) from None

        try:
            return await self._loop.run_in_executor(self._threads, call)
        except RuntimeError as error:  # the threads have ended
            raise StoreError(str(error)) from None


class DirectoryStore(ThreadedStore):
    """A directory: obstore cannot replace a file only if it has a version, so that is done here under a lock."""

    def __init__(self, root: str, store: Any, loop: asyncio.AbstractEventLoop, rates: StoreRates) -> None:
        super().__init__(store, loop, rates)
        self._root = root

    async def read_whole(self, name: str) -> tuple[bytes, Version]:
        def read() -> tuple[bytes, Version]:
            with open(os.path.join(self._root, name), "rb") as file:
                data = file.read()
            return data, _digest(data)

        return await self._run(read)

    def _replace(self, name: str, data: bytes, version: Version | None) -> Version:
        path = os.path.join(self._root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(f"{self._root}/.lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                with open(path, "rb") as file:
                    present: Version | None = _digest(file.read())
            except FileNotFoundError:
                present = None
            if present != version:
                raise FileExistsError(f"{name} has another version")
            temporary = f"{path}#new"
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            directory = os.open(os.path.dirname(path), os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        return _digest(data)

    async def list(self, prefix: str) -> list[StoredObject]:
        return [found for found in await super().list(prefix) if not found.name.endswith(("#new", ".lock"))]


def open_store(url: str, loop: asyncio.AbstractEventLoop, rates: StoreRates) -> ObjectStore:
    """The store of `millstream.tier.url`; ValueError if the URL or the environment has a fault."""
    from obstore.exceptions import BaseError
    from obstore.store import LocalStore, from_url

    if url.startswith("file://"):
        root = url.removeprefix("file://")
        os.makedirs(root, exist_ok=True)
        return DirectoryStore(root, LocalStore(root), loop, rates)
    options: Any = {}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    if url.startswith("s3://") and endpoint.startswith("http://"):
        options["client_options"] = {"allow_http": True}
    try:
        store = from_url(url, retry_config={"retry_timeout": _timeout()}, **options)
    except BaseError as error:
        raise ValueError(f"millstream.tier.url={url}: {_short(error)}") from None
    return ThreadedStore(store, loop, rates)


def _timeout() -> Any:
    from datetime import timedelta

    return timedelta(seconds=_ATTEMPTS_SECONDS)


def _digest(data: bytes) -> Version:
    return hashlib.sha256(data).hexdigest()


def _short(error: BaseException) -> str:
    return str(error).split("\n", 1)[0][:300]
