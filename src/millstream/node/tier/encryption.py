"""Encryption of objects in the tier: AES-256-GCM by chunks under a data key of each object, which is wrapped by a key
of the operator (envelope encryption).

    chunk, chunk, …, envelope (JSON), trailer

A chunk is 64 KiB of the plain object and a tag of 16 bytes, so that a range of the object can be read and checked
without the rest. The nonce of a chunk is its number: a data key is used for one object only, and the object is always
written with the same bytes. The name and the size of the object are authenticated with each chunk, so that chunks and
objects cannot be exchanged or cut. The envelope has the id of the operator's key and the wrapped data key (AES key
wrap, RFC 3394). The manifest has both too, so that a reader needs no request for them.

The operator's keys come from a file or from the output of a command, one `id=base64 of 32 bytes` in each line. Old keys
stay there as long as objects are encrypted with them.

`cryptography` is imported on first use: it takes a tenth of a node's start.
"""

import base64
import binascii
import json
import os
import shlex
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from millstream.formats.records.batch import Bytes
from millstream.node.storage.object_store import StoreError
from millstream.node.tier.core.manifest import DataKey
from millstream.node.tier.core.object_format import DamagedObjectError

CHUNK_BYTES = 64 << 10
TAG_BYTES = 16
_STORED_CHUNK = CHUNK_BYTES + TAG_BYTES
_KEY_BYTES = 32
_MAGIC = b"MILLTENC"
_VERSION = 1
_TRAILER = Struct(">II8s")
_SENT_CHUNKS = 64
_COMMAND_TIMEOUT_SECONDS = 30.0
_MOST_KEYS_BYTES = 1 << 20


NO_KEYS = (
    "millstream.tier.encryption.key.id is set, and there are no keys: set millstream.tier.encryption.key.file or "
    "millstream.tier.encryption.key.command on all brokers"
)


class WrongKeyError(StoreError):
    """The key of an object is missing or wrong. The message says what to do."""


class Keyring:
    """The operator's keys by id. Unknown ids are looked up in the source again: a new key needs no restart."""

    def __init__(self, source: str, load: Callable[[], str]) -> None:
        """`source` is for messages; `load` may block."""
        self._source = source
        self._load = load
        self._lock = threading.Lock()
        self._keys: Mapping[str, bytes] = {}

    def load(self) -> None:
        """Read all keys; ValueError if the source cannot be read. May block."""
        self._keys = parse_keys(self._load(), self._source)

    def key(self, key_id: str) -> bytes:
        """May block."""
        with self._lock:
            if key_id not in self._keys:
                try:
                    self.load()
                except ValueError as error:
                    raise WrongKeyError(str(error)) from None
            found = self._keys.get(key_id)
        if found is None:
            raise WrongKeyError(
                f"the key {key_id!r} is not in {self._source}, which has {', '.join(sorted(self._keys)) or 'none'}: "
                "add it there (docs/tiered-storage.md, Encryption)"
            )
        return found


def open_keyring(file: str | None, command: str | None) -> Keyring | None:
    """The keys of a file or of a command; None if neither is given."""
    if file is not None:
        return Keyring(f"the key file {file}", lambda: _read_file(file))
    if command is not None:
        return Keyring(f"the output of the key command {_program(command)}", lambda: _run_command(command))
    return None


def _program(command: str) -> str:
    """For messages: the arguments may have a token of the vault."""
    return repr((command.split() or [""])[0])


def _read_file(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(_MOST_KEYS_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the key file {path} cannot be read: {error}") from None


def _run_command(command: str) -> str:
    name = f"the key command {_program(command)}"
    try:
        arguments = shlex.split(command)
        if not arguments:
            raise ValueError("it is empty")
        done = subprocess.run(
            arguments, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired:  # its text has all arguments
        raise ValueError(f"{name} took longer than {_COMMAND_TIMEOUT_SECONDS:g} s") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{name} failed: {error}") from None
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1][:200]
        raise ValueError(f"{name} ended with exit code {done.returncode}: {said}")
    return done.stdout[:_MOST_KEYS_BYTES]


def parse_keys(text: str, source: str) -> dict[str, bytes]:
    """ValueError if a line is not `id=base64 of 32 bytes`; the message never has a key."""
    keys = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key_id, separator, value = (part.strip() for part in line.partition("="))
        if not separator or not key_id:
            raise ValueError(f"line {number} of {source} is not `id=key`")
        try:
            key = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raise ValueError(f"the key {key_id!r} of {source} is not base64") from None
        if len(key) != _KEY_BYTES:
            raise ValueError(
                f"the key {key_id!r} of {source} has {len(key)} bytes; it must have {_KEY_BYTES}: "
                "make one with `openssl rand -base64 32`"
            )
        keys[key_id] = key
    return keys


def new_data_key(keyring: Keyring, key_id: str) -> tuple[bytes, DataKey]:
    """A data key for one object, plain and wrapped. May block."""
    from cryptography.hazmat.primitives.keywrap import aes_key_wrap

    plain = os.urandom(_KEY_BYTES)
    return plain, DataKey(key_id, aes_key_wrap(keyring.key(key_id), plain))


def unwrap(keyring: Keyring | None, key: DataKey, name: str) -> bytes:
    """The data key of an object. May block."""
    if keyring is None:
        raise WrongKeyError(
            f"{name} is encrypted with the key {key.key_id!r}: set millstream.tier.encryption.key.file or "
            "millstream.tier.encryption.key.command (docs/tiered-storage.md, Encryption)"
        )
    from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap

    try:
        return aes_key_unwrap(keyring.key(key.key_id), key.wrapped)
    except (InvalidUnwrap, ValueError):
        raise WrongKeyError(
            f"{name} was not encrypted with the key that now has the id {key.key_id!r}: give the keys back their ids"
        ) from None


class ObjectCipher:
    """Encrypts and decrypts one object. `size` is its plain size."""

    def __init__(self, data_key: bytes, key: DataKey, name: str, size: int) -> None:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._cipher = AESGCM(data_key)
        self._wrong: type[Exception] = InvalidTag
        self._key = key
        self._name = name
        self._size = size
        self._bound_to = f"{_VERSION}:{size}:{name}".encode()

    def _seal(self, number: int, data: bytes) -> bytes:
        return self._cipher.encrypt(number.to_bytes(12, "big"), data, self._bound_to)

    @property
    def stored_size(self) -> int:
        return self._stored_chunks_size + len(self._envelope())

    @property
    def _stored_chunks_size(self) -> int:
        return self._size + -(-self._size // CHUNK_BYTES) * TAG_BYTES

    def _envelope(self) -> bytes:
        text = json.dumps(
            {
                "version": _VERSION,
                "algorithm": "AES-256-GCM",
                "chunkBytes": CHUNK_BYTES,
                "size": self._size,
                "keyId": self._key.key_id,
                "wrappedKey": base64.b64encode(self._key.wrapped).decode(),
            },
            separators=(",", ":"),
        ).encode()
        return text + _TRAILER.pack(len(text), crc32c(text), _MAGIC)

    def encrypted(self, parts: Iterator[bytes]) -> Iterator[bytes]:
        """The stored bytes of the object. May block."""
        number = 0
        for block in _blocks_of(parts, CHUNK_BYTES * _SENT_CHUNKS):
            view = memoryview(block)
            sealed = []
            for start in range(0, len(block), CHUNK_BYTES):
                sealed.append(self._seal(number, bytes(view[start : start + CHUNK_BYTES])))
                number += 1
            yield b"".join(sealed)
        yield self._envelope()

    def stored_range(self, position: int, length: int) -> tuple[int, int]:
        """Position and length of the stored chunks that have a range of the plain object."""
        first, last = position // CHUNK_BYTES, (position + length - 1) // CHUNK_BYTES
        start = first * _STORED_CHUNK
        return start, min((last + 1) * _STORED_CHUNK, self._stored_chunks_size) - start

    def decrypted(self, stored: Bytes, position: int, length: int) -> bytes:
        """A range of the plain object, from the bytes of `stored_range`. DamagedObjectError if they are not right."""
        first = position // CHUNK_BYTES
        view = memoryview(stored)
        plain = []
        for place in range(0, len(stored), _STORED_CHUNK):
            number = first + place // _STORED_CHUNK
            try:
                chunk = self._cipher.decrypt(
                    number.to_bytes(12, "big"), bytes(view[place : place + _STORED_CHUNK]), self._bound_to
                )
            except (self._wrong, ValueError):
                raise DamagedObjectError(f"chunk {number} of {self._name} is damaged, or of another object") from None
            plain.append(chunk)
        begin = position - first * CHUNK_BYTES
        found = b"".join(plain)[begin : begin + length]
        if len(found) != length:  # whole chunks may be missing at the end
            raise DamagedObjectError(f"{self._name} ends at byte {position + len(found)}, before {position + length}")
        return found


def _blocks_of(parts: Iterator[bytes], size: int) -> Iterator[bytes]:
    """The same bytes in blocks of a size; only the last one is smaller."""
    held = bytearray()
    for part in parts:
        held += part
        while len(held) >= size:
            yield bytes(held[:size])
            del held[:size]
    if held:
        yield bytes(held)


class Envelope(NamedTuple):
    """What an encrypted object says of itself, at its end."""

    key: DataKey
    size: int
    """Of the plain object."""


def decode_envelope(stored: bytes) -> Envelope | None:
    """From the end of an object; None if it is not encrypted. DamagedObjectError if it cannot be read."""
    if len(stored) < _TRAILER.size:
        return None
    length, crc, magic = _TRAILER.unpack(stored[-_TRAILER.size :])
    if magic != _MAGIC:
        return None
    text = stored[-_TRAILER.size - length : -_TRAILER.size]
    if len(text) != length or crc32c(text) != crc:
        raise DamagedObjectError("the envelope has a wrong checksum")
    fields = json.loads(text)
    if fields["version"] != _VERSION or fields["chunkBytes"] != CHUNK_BYTES:
        raise DamagedObjectError("the encryption has another version: use a newer Millstream")
    return Envelope(DataKey(fields["keyId"], base64.b64decode(fields["wrappedKey"])), fields["size"])


def decrypt_object(stored: bytes, name: str, keyring: Keyring | None) -> bytes:
    """A whole object as it is without encryption."""
    envelope = decode_envelope(stored)
    if envelope is None:
        return stored
    cipher = ObjectCipher(unwrap(keyring, envelope.key, name), envelope.key, name, envelope.size)
    start, length = cipher.stored_range(0, envelope.size)
    return cipher.decrypted(stored[start : start + length], 0, envelope.size)
