"""SCRAM users: AlterUserScramCredentials (51) and DescribeUserScramCredentials (50).

The client sends a salted password; the keys that are stored come from it. So a password never reaches a node.
"""

import hashlib
import hmac
from collections import Counter
from collections.abc import Sequence
from dataclasses import field

from millstream.common.lazy_dataclass import dataclass
from millstream.formats.model.errors import ErrorCode
from millstream.node.metadata.image import MetadataImage
from millstream.node.metadata.records import (
    Decision,
    MetadataRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)

ALGORITHMS = {1: ("sha256", 32), 2: ("sha512", 64)}
"""Hash and its size, by the number of the mechanism (1: SCRAM-SHA-256, 2: SCRAM-SHA-512)."""
MIN_ITERATIONS, MAX_ITERATIONS = 4096, 16384
_MAX_NAME_BYTES = 1024
_MAX_SALT_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Upsertion:
    """A new or changed credential."""

    name: str
    mechanism: int
    iterations: int
    salt: bytes = field(repr=False)
    salted_password: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Deletion:
    name: str
    mechanism: int


@dataclass(frozen=True, slots=True)
class UserAlteration:
    """The result for one user."""

    user: str
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


def alter_scram_credentials(
    image: MetadataImage, deletions: Sequence[Deletion], upsertions: Sequence[Upsertion]
) -> Decision[UserAlteration]:
    """Each user is changed as a whole or not at all."""
    changes: list[Deletion | Upsertion] = [*deletions, *upsertions]
    times = Counter((each.name, each.mechanism) for each in changes)
    problems: dict[str, UserAlteration] = {}
    for change in changes:
        problem = _problem(image, change)
        if times[change.name, change.mechanism] > 1:
            problem = (
                ErrorCode.DUPLICATE_RESOURCE,
                "A user credential cannot be altered twice in the same request",
            )
        if problem is not None:
            problems.setdefault(change.name, UserAlteration(change.name, *problem))
    records = tuple(_record(change) for change in changes if change.name not in problems)
    users = dict.fromkeys(change.name for change in changes)
    return Decision(records, tuple(problems.get(user, UserAlteration(user)) for user in users))


def _problem(image: MetadataImage, change: Deletion | Upsertion) -> tuple[ErrorCode, str] | None:
    if not change.name:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"
    if len(change.name.encode()) > _MAX_NAME_BYTES:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, f"Username must not be longer than {_MAX_NAME_BYTES} bytes"
    if change.mechanism not in ALGORITHMS:
        return ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"
    if isinstance(change, Deletion):
        if (change.name, change.mechanism) not in image.scram_credentials:
            return ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
        return None
    if change.iterations < MIN_ITERATIONS:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations"
    if change.iterations > MAX_ITERATIONS:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations"
    if not 0 < len(change.salt) <= _MAX_SALT_BYTES:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, f"The salt must have 1 to {_MAX_SALT_BYTES} bytes"
    size = ALGORITHMS[change.mechanism][1]
    if len(change.salted_password) != size:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, f"The salted password must have {size} bytes"
    return None


def _record(change: Deletion | Upsertion) -> MetadataRecord:
    if isinstance(change, Deletion):
        return RemoveUserScramCredentialRecord(name=change.name, mechanism=change.mechanism)
    return credential_record(change.name, change.mechanism, change.salt, change.salted_password, change.iterations)


def credential_record(
    name: str, mechanism: int, salt: bytes, salted_password: bytes, iterations: int
) -> UserScramCredentialRecord:
    """The record of a credential, from a salted password (RFC 5802, section 3)."""
    algorithm, _ = ALGORITHMS[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", algorithm)
    return UserScramCredentialRecord(
        name=name,
        mechanism=mechanism,
        salt=salt,
        stored_key=hashlib.new(algorithm, client_key).digest(),
        server_key=hmac.digest(salted_password, b"Server Key", algorithm),
        iterations=iterations,
    )


@dataclass(frozen=True, slots=True)
class UserDescription:
    user: str
    error: ErrorCode
    message: str | None
    credentials: tuple[tuple[int, int], ...] = ()
    """Mechanism and iterations."""


def describe_scram_users(image: MetadataImage, users: Sequence[str] | None) -> list[UserDescription]:
    """The credentials of these users; None or an empty list is all of them."""
    known: dict[str, list[tuple[int, int]]] = {}
    for (name, mechanism), record in sorted(image.scram_credentials.items()):
        known.setdefault(name, []).append((mechanism, record.iterations))
    times = Counter(users or list(known))
    rows = []
    for user, count in times.items():
        if count > 1:
            problem = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
            rows.append(UserDescription(user, ErrorCode.DUPLICATE_RESOURCE, problem))
        elif user not in known:
            problem = f"Attempt to describe a user credential that does not exist: {user}"
            rows.append(UserDescription(user, ErrorCode.RESOURCE_NOT_FOUND, problem))
        else:
            rows.append(UserDescription(user, ErrorCode.NONE, None, tuple(known[user])))
    return rows
