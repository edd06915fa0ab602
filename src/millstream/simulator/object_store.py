"""The simulated object store: slow, failing, listing late, and with conditional writes whose responses are lost.

With half of the seeds, most segments go up in parts, as large ones do in S3: a process that is killed leaves an upload
that it can continue.

One store serves all nodes of a cluster. A request takes effect at some time of its duration, also if the node that sent
it is killed meanwhile. Reads and conditional writes are consistent, as those of S3 are. Lists are not: new objects
appear late in them.
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from millstream.node.storage.object_store import (
    ConflictError,
    NoObjectError,
    StoredObject,
    StoreError,
    Upload,
    Version,
)
from millstream.simulator.loop import Scheduler

if TYPE_CHECKING:
    from millstream.simulator.machine import Process

T = TypeVar("T")
_SECONDS = (0.005, 0.02, 0.1, 0.6)
_LISTED_AFTER_SECONDS = 3.0
_PART_BYTES = 700


class SimulatedUpload(NamedTuple):
    name: str
    began: float
    parts: dict[int, bytes]


class SimulatedStore:
    """What all nodes share."""

    def __init__(self, scheduler: Scheduler, seed: str, epoch_ms: int) -> None:
        """`epoch_ms`: the wall-clock time at the start."""
        self.scheduler = scheduler
        self.epoch_ms = epoch_ms
        self.randomness = random.Random(f"{seed}/store")
        self.objects: dict[str, tuple[bytes, Version, float]] = {}
        """Bytes, version and time of each object."""
        self.versions = 0
        self.uploads: dict[str, SimulatedUpload] = {}
        self.whole_bytes = random.Random(f"{seed}/parts").choice((1 << 20, 1000))
        self.failing = self.randomness.choice((0.0, 0.02, 0.1, 0.3))
        """The share of requests that fail. Half of them take effect nevertheless."""
        self.is_down = False
        self.requests = 0

    def heal(self) -> None:
        """From now on requests do not fail."""
        self.failing, self.is_down = 0.0, False

    def time_ms(self, at: float) -> int:
        return self.epoch_ms + int(at * 1000)

    def attach(self, process: "Process") -> "AttachedStore":
        return AttachedStore(self, process)


class AttachedStore:
    """The store as one process sees it."""

    def __init__(self, store: SimulatedStore, process: "Process") -> None:
        self._store = store
        self._process = process

    def close(self) -> None:
        pass

    @property
    def whole_bytes(self) -> int:
        return self._store.whole_bytes

    def _request(self, effect: Callable[[], T]) -> "asyncio.Future[T]":
        store, process = self._store, self._process
        store.requests += 1
        future: asyncio.Future[T] = process.loop.create_future()
        duration = store.randomness.choice(_SECONDS) * store.randomness.uniform(0.5, 2.0)
        fails = store.is_down or store.randomness.random() < store.failing
        takes_effect = not store.is_down and (not fails or store.randomness.random() < 0.5)
        applied_at = store.scheduler.now + duration * store.randomness.random()
        outcome: list[Any] = [None, None]

        def apply() -> None:
            if takes_effect:
                try:
                    outcome[0] = effect()
                except StoreError as error:
                    outcome[1] = error

        def respond() -> None:
            if process.alive:
                error = StoreError("the simulated store failed") if fails else outcome[1]
                process.loop.call_soon(_settle, future, outcome[0], error)

        store.scheduler.at(applied_at, apply)
        store.scheduler.after(duration, respond)
        return future

    def _put(self, name: str, data: bytes) -> Version:
        store = self._store
        store.versions += 1
        version = str(store.versions)
        store.objects[name] = data, version, store.scheduler.now
        return version

    async def create(
        self, name: str, parts: Callable[[], Iterator[bytes]], size: int, upload: Upload | None = None
    ) -> None:
        data = b"".join(parts())
        assert len(data) == size, f"{name} has {len(data)} bytes, not {size}"
        if size > self.whole_bytes:
            await self._create_in_parts(name, data, upload)
            return

        def effect() -> None:
            if name in self._store.objects:
                raise ConflictError(name)
            self._put(name, data)

        await self._request(effect)

    async def _create_in_parts(self, name: str, data: bytes, upload: Upload | None) -> None:
        store = self._store

        def begin() -> str:
            number = str(len(store.uploads) + store.versions + store.requests)
            store.uploads[number] = SimulatedUpload(name, store.scheduler.now, {})
            return number

        upload_id = upload.id if upload is not None else await self._request(begin)
        pieces = [data[start : start + _PART_BYTES] for start in range(0, len(data), _PART_BYTES)]
        present = await self._request(lambda: dict(self._upload(upload_id).parts))
        for number, piece in enumerate(pieces):
            if present.get(number) != piece:
                await self._request(partial(self._put_part, upload_id, number, piece))

        def complete() -> None:
            found = self._upload(upload_id)
            whole = b"".join(found.parts[number] for number in range(len(pieces)))
            if whole != data:
                raise NoObjectError(f"{name} has other parts")  # as S3 does, by the ETags in the request
            del store.uploads[upload_id]
            version = self._put(name, whole)
            store.objects[name] = whole, version, found.began

        await self._request(complete)

    def _put_part(self, upload_id: str, number: int, piece: bytes) -> None:
        self._upload(upload_id).parts[number] = piece

    def _upload(self, upload_id: str) -> SimulatedUpload:
        try:
            return self._store.uploads[upload_id]
        except KeyError:
            raise NoObjectError(upload_id) from None

    def _get(self, name: str) -> tuple[bytes, Version, float]:
        try:
            return self._store.objects[name]
        except KeyError:
            raise NoObjectError(name) from None

    async def read(self, name: str, position: int, length: int) -> bytes:
        return await self._request(lambda: self._get(name)[0][position : position + length])

    async def read_whole(self, name: str) -> tuple[bytes, Version]:
        return await self._request(lambda: self._get(name)[:2])

    async def replace(self, name: str, data: bytes, version: Version | None) -> Version:
        def effect() -> Version:
            present = self._store.objects.get(name)
            if (None if present is None else present[1]) != version:
                raise ConflictError(name)
            return self._put(name, data)

        return await self._request(effect)

    async def delete(self, names: Sequence[str]) -> None:
        def effect() -> None:
            for name in names:
                self._store.objects.pop(name, None)

        await self._request(effect)

    async def uploads(self, prefix: str) -> list[Upload]:
        def effect() -> list[Upload]:
            return [
                Upload(each.name, number, self._store.time_ms(each.began))
                for number, each in self._store.uploads.items()
                if each.name.startswith(prefix)
            ]

        return await self._request(effect)

    async def abort(self, uploads: Sequence[Upload]) -> None:
        def effect() -> None:
            for each in uploads:
                self._store.uploads.pop(each.id, None)

        await self._request(effect)

    async def list(self, prefix: str) -> list[StoredObject]:
        def effect() -> list[StoredObject]:
            oldest = self._store.scheduler.now - _LISTED_AFTER_SECONDS
            return [
                StoredObject(name, len(data), self._store.time_ms(at))
                for name, (data, _, at) in self._store.objects.items()
                if name.startswith(f"{prefix}/") and at <= oldest
            ]

        return await self._request(effect)


def _settle(future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
