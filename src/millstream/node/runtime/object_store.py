"""The object store of tiered storage: S3, Google Cloud Storage, Azure and directories, by obstore.

Calls run in threads of their own, so that a slow store takes no thread from the disk. Rates are limited there too.
Uploads that a crash has cut off are the matter of `s3_uploads.py`.
obstore is imported when a store is opened: a node without tiered storage does not load it.
"""

import asyncio
import fcntl
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from datetime import timedelta
from importlib.util import find_spec
from queue import SimpleQueue
from typing import Any, TypeVar

from millstream.config.setting import ConfigError
from millstream.config.table import tier
from millstream.formats.records.batch import Bytes
from millstream.node.runtime.s3_uploads import S3Uploads, in_parts, open_uploads
from millstream.node.storage.object_store import (
    ConflictError,
    NoObjectError,
    ObjectStore,
    StoredObject,
    StoreError,
    StoreRates,
    Upload,
    Version,
)

T = TypeVar("T")
_THREADS = 24
_WHOLE_BYTES = 8 << 20
_PART_BYTES = 8 << 20
_ATTEMPTS_SECONDS = 20
_PART_ATTEMPTS_SECONDS = 600
_PART_ATTEMPTS = 10_000
_LONGEST_PART_PAUSE_SECONDS = 1
"""How long a part of a large object is tried again: an interrupted network does not begin the whole copy again."""
_LONGEST_SLEEP_SECONDS = 0.2
UNLIMITED = (1 << 63) - 1


class Pace:
    """Delays threads so that a rate is kept, over about a second. A rate that changes counts at once, and a thread that
    waits is released when the store is closed."""

    def __init__(
        self,
        rate: Callable[[], int],
        is_closed: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rate
        self._is_closed = is_closed
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._at = clock()
        self._free = 0.0
        """Bytes that may be taken now; below 0 after a take that was larger than what was free."""

    def take(self, size: int) -> None:
        while (wait := self._try(size)) > 0:
            if self._is_closed():
                raise StoreError("the store is closed")
            self._sleep(min(wait, _LONGEST_SLEEP_SECONDS))

    def _try(self, size: int) -> float:
        """0 if the bytes are taken, else after how many seconds to try again."""
        rate = self._rate()
        with self._lock:
            now = self._clock()
            earned = (now - self._at) * rate
            self._at = now
            if rate >= UNLIMITED:
                self._free = 0.0
                return 0.0
            self._free = min(self._free + earned, float(rate))
            if self._free < -0.5:  # less than a byte is not worth a wait
                return -self._free / rate
            self._free -= size
            return 0.0


class LoopDelay:
    """How late the event loop runs its timers, measured while copies or reads are under way: producers and consumers
    then wait as long. Copies wait: after each block they pause, so that one that is always in the way keeps about
    20 MB/s."""

    INTERVAL_SECONDS = 0.02
    LATE_SECONDS = 0.005
    LONGEST_PAUSE_SECONDS = 0.2
    _FORGETTING = 0.8

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls = 0
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.late_s = 0.0
        """The greatest delay of the last moments."""

    def __enter__(self) -> None:
        """On the event loop: a copy or a read begins."""
        self._calls += 1
        if self._timer is None:
            self._wait()

    def __exit__(self, *_: object) -> None:
        self._calls -= 1
        if not self._calls and self._timer is not None:
            self._timer.cancel()
            self._timer, self.late_s = None, 0.0

    def _wait(self) -> None:
        self._due = self._loop.time() + self.INTERVAL_SECONDS
        self._timer = self._loop.call_at(self._due, self._measure)

    def _measure(self) -> None:
        self.late_s = max(self._loop.time() - self._due, self.late_s * self._FORGETTING)
        self._wait()

    @property
    def pause_s(self) -> float:
        """How long a copy pauses after a block. Called in threads."""
        late_s = self.late_s
        return 0.0 if late_s < self.LATE_SECONDS else min(late_s * 20, self.LONGEST_PAUSE_SECONDS)


class ReadPauses:
    """Reads give way to producers: while clients produce and the event loop is late, reads pause, for half as long as
    copies. A reader has many reads under way, so they pause one after the other; about 40 MB/s remain at least."""

    def __init__(
        self,
        delay: LoopDelay,
        has_producers: Callable[[], bool],
        is_closed: Callable[[], bool],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._delay = delay
        self._has_producers = has_producers
        self._is_closed = is_closed
        self._sleep = sleep
        self._turn = threading.Lock()

    def take(self) -> None:
        """Called in threads, before a read."""
        if self._has_producers() and self._delay.pause_s:
            with self._turn:
                if (pause_s := self._delay.pause_s / 2) and not self._is_closed():
                    self._sleep(pause_s)


class DaemonThreads:
    """Threads for calls that may take long. They do not keep the process from ending, as those of ThreadPoolExecutor
    do: a store that does not respond must not delay the stop of a broker."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._count = 0
        self.is_closed = False

    def submit(self, function: Callable[[], T]) -> "Future[T]":
        """Called by one thread."""
        future: Future[T] = Future()
        if self.is_closed:
            future.set_exception(StoreError("the store is closed"))
            return future
        self._calls.put((function, future))
        if not self._idle.acquire(blocking=False) and self._count < self._most:
            self._count += 1
            threading.Thread(target=self._work, name=f"{self._name}-{self._count}", daemon=True).start()
        return future

    def close(self) -> None:
        """Threads end after their call; calls that wait are dropped."""
        self.is_closed = True
        for _ in range(self._count):
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            function, future = call
            if not self.is_closed and future.set_running_or_notify_cancel():
                self._call(function, future)
            self._idle.release()

    def _call(self, function: Callable[[], Any], future: "Future[Any]") -> None:
        """A store that was closed meanwhile has no waiter for the result, and the event loop may have ended."""
        try:
            result = function()
        except BaseException as error:
            if not self.is_closed:
                future.set_exception(error)
        else:
            if not self.is_closed:
                future.set_result(result)


class ThreadedStore:
    """A store of obstore. Subclasses write conditionally."""

    def __init__(
        self,
        store: Any,
        loop: asyncio.AbstractEventLoop,
        rates: StoreRates,
        persistent_store: Any | None = None,
        uploads: S3Uploads | None = None,
    ) -> None:
        """`persistent_store`: the same store, which repeats a failed request for longer."""
        self._store = store
        self._uploads = uploads
        self._persistent_store = store if persistent_store is None else persistent_store
        self._loop = loop
        self._threads = DaemonThreads(_THREADS, "millstream-tier")
        self._delay = LoopDelay(loop)
        self._writing = Pace(rates.write, lambda: self._threads.is_closed)
        self._reading = Pace(rates.read, lambda: self._threads.is_closed)
        self._read_pauses = ReadPauses(self._delay, rates.has_producers, lambda: self._threads.is_closed)

    @property
    def whole_bytes(self) -> int:
        return _WHOLE_BYTES

    def close(self) -> None:
        self._threads.close()
        if self._uploads is not None:
            self._uploads.close()

    async def create(
        self, name: str, parts: Callable[[], Iterator[bytes]], size: int, upload: Upload | None = None
    ) -> None:
        with self._delay:
            if upload is None:
                await self._run(lambda: self._create(name, parts, size))
            else:
                await self._run(lambda: self._continue(upload, parts, size))

    def _create(self, name: str, parts: Callable[[], Iterator[bytes]], size: int) -> None:
        import obstore
        from obstore.exceptions import BaseError

        paced = self._paced(parts())
        try:
            if size <= _WHOLE_BYTES:
                obstore.put(self._store, name, b"".join(paced), mode="create")
            else:  # the name has a random part, so that no other writer has the same
                obstore.put(
                    self._persistent_store, name, paced, use_multipart=True, chunk_size=_PART_BYTES, max_concurrency=2
                )
        except BaseError:
            # The request may have been successful, and only its response lost. A repeated request then fails.
            if not self._has(name, size):
                raise

    def _continue(self, upload: Upload, parts: Callable[[], Iterator[bytes]], size: int) -> None:
        if self._uploads is None:
            raise NoObjectError(f"the store has no upload of {upload.name}")
        self._uploads.finish(upload, in_parts(parts(), _PART_BYTES), self._wait_to_write)

    async def uploads(self, prefix: str) -> list[Upload]:
        found = self._uploads
        return [] if found is None else await self._run(lambda: found.list(prefix))

    async def abort(self, uploads: Sequence[Upload]) -> None:
        if uploads and (found := self._uploads) is not None:
            await self._run(lambda: found.abort(uploads))

    def _has(self, name: str, size: int) -> bool:
        import obstore
        from obstore.exceptions import BaseError

        try:
            return obstore.head(self._store, name)["size"] == size
        except (BaseError, OSError):
            return False

    def _paced(self, parts: Iterator[bytes]) -> Iterator[bytes]:
        for part in parts:
            self._wait_to_write(len(part))
            yield part

    def _wait_to_write(self, size: int) -> None:
        self._writing.take(size)
        if (pause_s := self._delay.pause_s) and not self._threads.is_closed:
            time.sleep(pause_s)

    async def read(self, name: str, position: int, length: int) -> Bytes:
        import obstore

        def get() -> Bytes:
            self._reading.take(length)
            self._read_pauses.take()
            return memoryview(obstore.get_range(self._store, name, start=position, length=length))  # no copy

        with self._delay:
            return await self._run(get)

    async def read_whole(self, name: str) -> tuple[bytes, Version]:
        import obstore

        def get() -> tuple[bytes, Version]:
            found = obstore.get(self._store, name)
            return bytes(found.bytes()), _version(found.meta)

        return await self._run(get)

    async def replace(self, name: str, data: bytes, version: Version | None) -> Version:
        return await self._run(lambda: self._replace(name, data, version))

    def _replace(self, name: str, data: bytes, version: Version | None) -> Version:
        import obstore

        mode: Any = "create" if version is None else _expected(version)
        return _version(obstore.put(self._store, name, data, mode=mode))

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

        return await asyncio.wrap_future(self._threads.submit(call), loop=self._loop)


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

    def _continue(self, upload: Upload, parts: Callable[[], Iterator[bytes]], size: int) -> None:
        self._remove(upload)  # it begins again: obstore does not write to a file that is there
        self._create(upload.name, parts, size)

    def _remove(self, upload: Upload) -> None:
        try:
            os.remove(os.path.join(self._root, f"{upload.name}#{upload.id}"))
        except FileNotFoundError:
            pass

    async def uploads(self, prefix: str) -> list[Upload]:
        """Files that obstore has not given their name yet."""
        above = os.path.join(self._root, prefix.rpartition("/")[0])

        def collect() -> list[Upload]:
            found = []
            for directory, _, files in os.walk(above):
                for path in (os.path.join(directory, file) for file in files):
                    name, _, number = os.path.relpath(path, self._root).rpartition("#")
                    if number.isdecimal() and name.startswith(prefix):
                        found.append(Upload(name, number, _modified_ms(path)))
            return found

        return await self._run(collect)

    async def abort(self, uploads: Sequence[Upload]) -> None:
        def remove() -> None:
            for each in uploads:
                self._remove(each)

        await self._run(remove)

    async def list(self, prefix: str) -> list[StoredObject]:
        return [found for found in await super().list(prefix) if not found.name.endswith(("#new", ".lock"))]


def open_store(url: str, loop: asyncio.AbstractEventLoop, rates: StoreRates) -> ObjectStore:
    """The store of `millstream.tier.url`; ConfigError if the URL or the environment has a fault."""
    if find_spec("obstore") is None:
        raise ConfigError(
            "tiered storage needs the package obstore: pip install 'millstream[tier]'", name=tier.TIER_URL.name
        )
    from obstore.exceptions import BaseError
    from obstore.store import LocalStore, from_url

    if not tier.is_store_url(url):  # of a command; that of a broker was checked
        raise ConfigError(f"it must be {tier.FORMS}", name=tier.TIER_URL.name)
    if url.startswith("file://"):
        root = url.removeprefix("file://")
        try:
            os.makedirs(root, exist_ok=True)
        except OSError as error:
            message = f"millstream.tier.url={url}: the directory cannot be made: {error.strerror}"
            raise ConfigError(message, name=tier.TIER_URL.name) from None
        return DirectoryStore(root, LocalStore(root), loop, rates)
    options: Any = {}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    if url.startswith("s3://") and endpoint.startswith("http://"):
        options["client_options"] = {"allow_http": True}
    try:
        store = from_url(url, retry_config={"retry_timeout": timedelta(seconds=_ATTEMPTS_SECONDS)}, **options)
        persistent_store = from_url(
            url,
            retry_config={
                "max_retries": _PART_ATTEMPTS,
                "retry_timeout": timedelta(seconds=_PART_ATTEMPTS_SECONDS),
                "backoff": {
                    "init_backoff": timedelta(milliseconds=100),
                    "max_backoff": timedelta(seconds=_LONGEST_PART_PAUSE_SECONDS),
                    "base": 2,
                },
            },
            **options,
        )
    except BaseError as error:
        raise ConfigError(f"millstream.tier.url={url}: {_short(error)}", name=tier.TIER_URL.name) from None
    return ThreadedStore(store, loop, rates, persistent_store, open_uploads(url))


def _version(found: Any) -> Version:
    """The ETag, and before it what the store calls a version: Google compares that, S3 and Azure the ETag."""
    return f"{found.get('version') or ''} {found['e_tag']}"


def _expected(version: Version) -> dict[str, str]:
    number, _, tag = version.partition(" ")
    return {"e_tag": tag, "version": number} if number else {"e_tag": tag}


def _digest(data: bytes) -> Version:
    return hashlib.sha256(data).hexdigest()


def _modified_ms(path: str) -> int:
    """Of a file that is gone meanwhile: now."""
    try:
        return int(os.path.getmtime(path) * 1000)
    except FileNotFoundError:
        return int(time.time() * 1000)


def _short(error: BaseException) -> str:
    return str(error).split("\n", 1)[0][:300]
