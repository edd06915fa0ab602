"""Encryption of objects: ranges of any place, wrong keys, exchanged and damaged bytes, keys of files and commands."""

import base64
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.node.tier.core.object_format import DamagedObjectError
from millstream.node.tier.encryption import (
    CHUNK_BYTES,
    Keyring,
    ObjectCipher,
    WrongKeyError,
    decode_envelope,
    decrypt_object,
    new_data_key,
    open_keyring,
    parse_keys,
    unwrap,
)

FIRST, SECOND = (base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2))
KEYS = f"# keys of the tier\n\nfirst={FIRST}\nsecond = {SECOND}\n"
NAME = "cluster/topic/0/00-00-ab.segment"


def keyring(text: str = KEYS) -> Keyring:
    return Keyring("the test", lambda: text)


def stored_object(plain: bytes, name: str = NAME, key_id: str = "first") -> bytes:
    data_key, key = new_data_key(keyring(), key_id)
    cipher = ObjectCipher(data_key, key, name, len(plain))
    stored = b"".join(cipher.encrypted(iter([plain[:100_000], plain[100_000:]])))
    assert len(stored) == cipher.stored_size
    return stored


PLAIN = os.urandom(3 * CHUNK_BYTES + 777)
STORED = stored_object(PLAIN)


@given(st.integers(0, len(PLAIN) - 1), st.integers(1, len(PLAIN)))
def test_any_range_can_be_read_alone(position: int, length: int) -> None:
    length = min(length, len(PLAIN) - position)
    envelope = decode_envelope(STORED)
    assert envelope is not None and envelope.size == len(PLAIN)
    cipher = ObjectCipher(unwrap(keyring(), envelope.key, NAME), envelope.key, NAME, envelope.size)
    start, size = cipher.stored_range(position, length)
    assert size <= length + 2 * CHUNK_BYTES + 5 * 16
    assert cipher.decrypted(STORED[start : start + size], position, length) == PLAIN[position : position + length]


@pytest.mark.parametrize("size", [1, CHUNK_BYTES - 1, CHUNK_BYTES, 2 * CHUNK_BYTES, 200 * CHUNK_BYTES + 1])
def test_objects_of_all_sizes_come_back(size: int) -> None:
    plain = os.urandom(size)
    stored = stored_object(plain, key_id="second")
    assert decrypt_object(stored, NAME, keyring()) == plain
    assert plain[:64] not in stored or size < 16


def test_an_object_that_is_not_encrypted_stays_as_it_is() -> None:
    assert decrypt_object(b"plain" * 10, NAME, None) == b"plain" * 10


def test_a_missing_key_is_named() -> None:
    with pytest.raises(WrongKeyError, match=r"key 'first': set millstream\.tier.encryption.key.file"):
        decrypt_object(STORED, NAME, None)
    with pytest.raises(WrongKeyError, match="the key 'first' is not in the test, which has second: add it there"):
        decrypt_object(STORED, NAME, keyring(f"second={SECOND}"))


def test_a_wrong_key_is_refused() -> None:
    with pytest.raises(WrongKeyError, match="not encrypted with the key that now has the id 'first'"):
        decrypt_object(STORED, NAME, keyring(f"first={SECOND}"))


def test_damaged_exchanged_and_cut_objects_are_refused() -> None:
    damaged = bytearray(STORED)
    damaged[CHUNK_BYTES + 50] ^= 1
    with pytest.raises(DamagedObjectError, match="chunk 1 of "):
        decrypt_object(bytes(damaged), NAME, keyring())
    with pytest.raises(DamagedObjectError, match="chunk 0 of other is damaged, or of another object"):
        decrypt_object(STORED, "other", keyring())
    exchanged = (
        STORED[CHUNK_BYTES + 16 : 2 * CHUNK_BYTES + 32] + STORED[: CHUNK_BYTES + 16] + STORED[2 * CHUNK_BYTES + 32 :]
    )
    with pytest.raises(DamagedObjectError, match="chunk 0"):
        decrypt_object(exchanged, NAME, keyring())
    envelope = decode_envelope(STORED)
    assert envelope is not None
    cipher = ObjectCipher(unwrap(keyring(), envelope.key, NAME), envelope.key, NAME, envelope.size)
    with pytest.raises(DamagedObjectError, match=f"ends at byte {CHUNK_BYTES}, before {2 * CHUNK_BYTES}"):
        cipher.decrypted(STORED[: CHUNK_BYTES + 16], 0, 2 * CHUNK_BYTES)
    torn = bytearray(STORED)
    torn[-20] ^= 1
    with pytest.raises(DamagedObjectError, match="envelope"):
        decrypt_object(bytes(torn), NAME, keyring())


def test_two_objects_with_the_same_bytes_are_different() -> None:
    assert stored_object(PLAIN)[:100] != STORED[:100]


def test_a_new_key_is_found_without_a_restart() -> None:
    text = [f"first={FIRST}"]
    keys = Keyring("the test", lambda: text[0])
    keys.load()
    text[0] = KEYS
    assert keys.key("second") == bytes([2]) * 32


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing", "line 1 of the test is not `id=key`"),
        ("# x\n=abc", "line 2 of the test is not `id=key`"),
        ("short=AAAA", "the key 'short' of the test has 3 bytes; it must have 32"),
        ("bad=***", "the key 'bad' of the test is not base64"),
    ],
)
def test_bad_keys_are_named_without_their_value(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        parse_keys(text, "the test")
    assert "AAAA" not in str(refused.value)


def test_keys_of_a_file_and_of_a_command(tmp_path: Path) -> None:
    file = tmp_path / "tier.keys"
    file.write_text(KEYS)
    for found in (
        open_keyring(str(file), None),
        open_keyring(None, f"{sys.executable} -c 'print(open(\"{file}\").read())'"),
    ):
        assert found is not None and found.key("first") == bytes([1]) * 32
    assert open_keyring(None, None) is None
    missing = open_keyring(str(tmp_path / "none"), None)
    assert missing is not None
    with pytest.raises(WrongKeyError, match=r"cannot be read: .*No such file"):
        missing.key("first")
    failing = open_keyring(None, f"{sys.executable} -c 'raise SystemExit(\"vault is sealed\")'")
    assert failing is not None
    with pytest.raises(WrongKeyError, match="exit code 1: vault is sealed"):
        failing.key("first")


def test_arguments_of_the_key_command_are_in_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.node.tier.encryption._COMMAND_TIMEOUT_SECONDS", 0.01)
    for command in ("sleep 60 s3cret", "false s3cret", "no-such-program s3cret", "true 's3cret", "true s3cret"):
        keyring = open_keyring(None, command)
        assert keyring is not None
        with pytest.raises(WrongKeyError) as found:
            keyring.key("a")
        assert "key command" in str(found.value) and "s3cret" not in str(found.value)
