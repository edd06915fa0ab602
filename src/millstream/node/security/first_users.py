"""The first SCRAM users of a new cluster, in a file of the data directory until the metadata log has them.

`millstream user first` and `millstream serve --bootstrap-user` write it, as Kafka's `kafka-storage format --add-scram`
does. The controller that leads first puts its users into the first records of the metadata log. Until then, its users
can log in too, so that controllers can use SCRAM among each other. The file has keys, and no password.
"""

import base64
import contextlib
import json
import os
import secrets
from collections.abc import Callable, Iterable

from millstream.config.setting import ConfigError
from millstream.node.metadata.records import UserScramCredentialRecord
from millstream.node.metadata.scram_users import credential_record
from millstream.node.security.core.scram import MIN_ITERATIONS, ScramMechanism, salted_password

FILE_NAME = "first-users.json"
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def new_salt() -> bytes:
    """26 letters and digits, as Kafka's tools make salts."""
    return "".join(secrets.choice(_DIGITS) for _ in range(26)).encode()


def make_credential(
    user: str, password: str, mechanism: ScramMechanism, iterations: int = MIN_ITERATIONS
) -> UserScramCredentialRecord:
    salt = new_salt()
    return credential_record(
        user, mechanism.number, salt, salted_password(mechanism, password, salt, iterations), iterations
    )


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def read_first_users(directory: str, read: Callable[[str], bytes] = _read) -> tuple[UserScramCredentialRecord, ...]:
    """The users of the file; none if there is no file. Raises ConfigError if it cannot be read."""
    path = os.path.join(directory, FILE_NAME)
    try:
        rows = json.loads(read(path))["users"]
        return tuple(
            UserScramCredentialRecord(
                name=row["name"],
                mechanism=row["mechanism"],
                salt=base64.b64decode(row["salt"]),
                stored_key=base64.b64decode(row["stored_key"]),
                server_key=base64.b64decode(row["server_key"]),
                iterations=row["iterations"],
            )
            for row in rows
        )
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} cannot be read ({type(error).__name__}): remove it, and add the users again"
        ) from None


def write_first_users(directory: str, users: Iterable[UserScramCredentialRecord]) -> str:
    """Adds users to the file, which only this account can read; returns its path."""
    os.makedirs(directory, exist_ok=True)
    known = {(each.name, each.mechanism): each for each in (*read_first_users(directory), *users)}
    rows = [
        {
            "name": each.name,
            "mechanism": each.mechanism,
            "salt": base64.b64encode(each.salt).decode(),
            "stored_key": base64.b64encode(each.stored_key).decode(),
            "server_key": base64.b64encode(each.server_key).decode(),
            "iterations": each.iterations,
        }
        for each in known.values()
    ]
    path = os.path.join(directory, FILE_NAME)
    temporary = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.remove(temporary)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump({"users": rows}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    return path
