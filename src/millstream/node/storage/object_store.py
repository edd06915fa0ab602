"""The object store of tiered storage, as a node uses it. `node/runtime/object_store.py` implements it with obstore; the
simulator has its own.

All methods are coroutines and never block the event loop. A write is whole or not there. After a `StoreError` of a
write, either may be the case: the caller reads again.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from millstream.formats.records.batch import Bytes

Version = str
"""The version of an object's content (an ETag): equal versions have equal bytes."""


class StoreError(Exception):
    """The store could not be reached, or refused the request."""


class NoObjectError(StoreError):
    """There is no object of that name."""


class ConflictError(StoreError):
    """The object is there already, or has another version: nothing was written."""


class StoredObject(NamedTuple):
    name: str
    size: int
    modified_ms: int


class Upload(NamedTuple):
    """The write of an object in parts, which was begun and is not completed: it is under way, or its process ended."""

    name: str
    id: str
    began_ms: int


class ObjectStore(Protocol):
    @property
    def whole_bytes(self) -> int:
        """Objects up to this size are one request. Larger ones go up in parts."""
        ...

    async def create(
        self, name: str, parts: Callable[[], Iterator[bytes]], size: int, upload: Upload | None = None
    ) -> None:
        """A new object, of a name that only this call uses. `parts` returns its bytes, in a thread.

        `upload`: one of the same name is continued; what is in the store with the same bytes is not sent again.
        NoObjectError if it is gone.
        """
        ...

    async def read(self, name: str, position: int, length: int) -> Bytes:
        """A range; fewer bytes only at the end of the object."""
        ...

    async def read_whole(self, name: str) -> tuple[bytes, Version]: ...

    async def replace(self, name: str, data: bytes, version: Version | None) -> Version:
        """Replace an object that has this version; None: it must not exist. ConflictError if that does not hold."""
        ...

    async def delete(self, names: Sequence[str]) -> None:
        """Objects that are gone already are no error."""
        ...

    async def uploads(self, prefix: str) -> list[Upload]:
        """Those of objects whose name begins with `prefix`. None, if the store has no list of them."""
        ...

    async def abort(self, uploads: Sequence[Upload]) -> None:
        """Delete what they have sent. Uploads that are gone already are no error."""
        ...

    async def list(self, prefix: str) -> list[StoredObject]:
        """The objects whose name begins with `prefix/`. A store may show a new one late."""
        ...

    def close(self) -> None: ...


class StoreRates(NamedTuple):
    """The maximum rates in bytes per second, as they are set now."""

    write: Callable[[], int]
    read: Callable[[], int]
    has_producers: Callable[[], bool] = lambda: False
    """Whether clients produce: then reads, too, give way while the node is late."""
