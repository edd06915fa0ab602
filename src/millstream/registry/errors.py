"""Errors with Confluent's codes: the first three digits of a code are the HTTP status."""

from collections.abc import Sequence


class RegistryError(Exception):
    """An error with a code of Confluent's API and a message that says what to do."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def status(self) -> int:
        """Of the HTTP response."""
        return self.code if self.code < 1000 else self.code // 100


class NotFoundError(RegistryError):
    """Not found in the records read so far: another gateway may have just written it."""


def subject_not_found(subject: str) -> NotFoundError:
    return NotFoundError(40401, f"Subject '{subject}' not found. GET /subjects lists those that exist.")


def version_not_found(version: object) -> NotFoundError:
    return NotFoundError(40402, f"Version {version} not found. GET /subjects/SUBJECT/versions lists those that exist.")


def schema_not_found(what: object = "") -> NotFoundError:
    text = f"Schema {what} not found" if what != "" else "Schema not found"
    return NotFoundError(40403, f"{text}. Register it with POST /subjects/SUBJECT/versions.")


def subject_soft_deleted(subject: str) -> RegistryError:
    return RegistryError(
        40404, f"Subject '{subject}' was soft deleted. Set permanent=true to delete it permanently, or register again."
    )


def subject_not_soft_deleted(subject: str) -> RegistryError:
    return RegistryError(
        40405,
        f"Subject '{subject}' was not deleted first before being permanently deleted: delete it without permanent.",
    )


def version_soft_deleted(subject: str, version: int) -> RegistryError:
    return RegistryError(
        40406, f"Subject '{subject}' Version {version} was soft deleted. Set permanent=true to delete it permanently."
    )


def version_not_soft_deleted(subject: str, version: int) -> RegistryError:
    return RegistryError(
        40407,
        f"Subject '{subject}' Version {version} was not deleted first before being permanently deleted: "
        "delete it without permanent.",
    )


def no_config_of_its_own(subject: str) -> NotFoundError:
    return NotFoundError(
        40408,
        f"Subject '{subject}' does not have subject-level compatibility configured. "
        "PUT /config/SUBJECT sets it, ?defaultToGlobal=true shows what applies.",
    )


def no_mode_of_its_own(subject: str) -> NotFoundError:
    return NotFoundError(
        40409,
        f"Subject '{subject}' does not have subject-level mode configured. "
        "PUT /mode/SUBJECT sets it, ?defaultToGlobal=true shows what applies.",
    )


def incompatible(messages: Sequence[str]) -> RegistryError:
    reasons = "; ".join(messages)
    return RegistryError(409, f"Schema being registered is incompatible with an earlier schema: {reasons}")


def invalid_schema(reason: str) -> RegistryError:
    return RegistryError(42201, f"Invalid schema: {reason}")


def invalid_version(version: object) -> RegistryError:
    return RegistryError(
        42202, f"The specified version '{version}' is not a valid version id: give a number from 1 on, or 'latest'."
    )


def invalid_level(reason: str) -> RegistryError:
    return RegistryError(42203, f"Invalid compatibility level: {reason}")


def invalid_mode(reason: str) -> RegistryError:
    return RegistryError(42204, f"Invalid mode: {reason}")


def not_permitted(reason: str) -> RegistryError:
    return RegistryError(42205, f"Operation not permitted: {reason}")


def referenced(subject: str, version: int, by: Sequence[int]) -> RegistryError:
    ids = ", ".join(str(schema_id) for schema_id in by)
    return RegistryError(
        42206, f"One or more references exist to subject '{subject}' version {version}: delete schema ids {ids} first."
    )


def referenced_by_deleted(subject: str, version: int, by: Sequence[int]) -> RegistryError:
    ids = ", ".join(str(schema_id) for schema_id in by)
    return RegistryError(
        42206,
        f"One or more references exist to subject '{subject}' version {version}, from schemas that are soft deleted: "
        f"delete schema ids {ids} permanently first.",
    )


def replaces_referenced(subject: str, version: int, by: Sequence[int]) -> RegistryError:
    ids = ", ".join(str(schema_id) for schema_id in by)
    return RegistryError(
        42206,
        f"One or more references exist to subject '{subject}' version {version}: import this schema as another "
        f"version, or delete schema ids {ids} permanently first.",
    )


def id_taken(schema_id: int) -> RegistryError:
    return RegistryError(
        42207, f"Schema id {schema_id} is taken by another schema in this context: import with another id."
    )


def invalid_subject(subject: str) -> RegistryError:
    return RegistryError(42208, f"The specified subject '{subject}' is not a valid subject: it must be a name.")


def too_large(reason: str) -> RegistryError:
    return RegistryError(42209, f"Schema too large: {reason}")


def store_failed(reason: str) -> RegistryError:
    return RegistryError(50001, f"The cluster refused the change: {reason}")


def store_timed_out(reason: str) -> RegistryError:
    return RegistryError(50002, f"The cluster did not respond in time; a retry is safe: {reason}")


def denied(operation: str, subject: str | None) -> RegistryError:
    where = "on this server" if subject is None else f"on Subject: {subject}"
    return RegistryError(40301, f"User is denied operation {operation} {where}.")
