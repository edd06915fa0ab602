"""Deleting versions and subjects: softly first, so that data can still be read by id, then for good."""

from collections.abc import Iterable
from dataclasses import replace

from millstream.registry import errors
from millstream.registry.log import SchemaLog, noop
from millstream.registry.records import Entry, Key, Kind, StoredSchema, schema_entry
from millstream.registry.scope import mode_of
from millstream.registry.state import RegistryState
from millstream.registry.subjects import Subject


class Deleter:
    def __init__(self, log: SchemaLog) -> None:
        self._log = log

    def delete_subject(self, subject: Subject, *, permanent: bool) -> list[int]:
        """The versions that were deleted."""
        gone: list[int] = []

        def decide(state: RegistryState) -> list[Entry]:
            gone.clear()
            _check_mode(state, subject)
            every, live = state.versions(subject, deleted=True), state.versions(subject)
            if not every:
                raise errors.subject_not_found(str(subject))
            if permanent and live:
                raise errors.subject_not_soft_deleted(str(subject))
            if not permanent and not live:
                raise errors.subject_soft_deleted(str(subject))
            going = every if permanent else live
            for version in going:
                _check_references(state, version, permanent=permanent, others_than=subject)
            gone.extend(version.version for version in going)
            if permanent:
                return _tombstones(state, going)
            value = {"subject": str(subject), "version": live[-1].version}
            return [Entry(Key(Kind.DELETE_SUBJECT, subject), value), *_forget_settings(state, subject)]

        self._log.write(decide)
        return gone

    def delete_version(self, subject: Subject, version: int | None, *, permanent: bool) -> int:
        """The version that was deleted; None is the latest."""
        gone: list[int] = []

        def decide(state: RegistryState) -> list[Entry]:
            gone.clear()
            _check_mode(state, subject)
            every, live = state.versions(subject, deleted=True), state.versions(subject)
            if not every or (version is None and not live):
                raise errors.subject_not_found(str(subject))
            found = live[-1] if version is None else state.version(subject, version)
            if found is None:
                raise errors.version_not_found(version)
            if permanent and not found.deleted:
                raise errors.version_not_soft_deleted(str(subject), found.version)
            if not permanent and found.deleted:
                raise errors.version_soft_deleted(str(subject), found.version)
            _check_references(state, found, permanent=permanent)
            gone.append(found.version)
            if permanent:
                return _tombstones(state, [found])
            entries = [schema_entry(replace(found, deleted=True))]
            return entries + (_forget_settings(state, subject) if live == [found] else [])

        self._log.write(decide)
        return gone[0]


def _check_mode(state: RegistryState, subject: Subject) -> None:
    mode = mode_of(state, subject)
    if mode.read_only:
        raise errors.not_permitted(f"subject {str(subject)!r} is in mode {mode}: PUT /mode/SUBJECT sets another")


def _check_references(
    state: RegistryState, version: StoredSchema, *, permanent: bool, others_than: Subject | None = None
) -> None:
    """A schema that is soft deleted still serves requests by id, so what it refers to is not deleted for good."""
    users = state.referencing(version.subject, version.version, deleted=permanent)
    users = [user for user in users if user.subject != others_than]
    live, gone = (sorted({user.id for user in users if user.deleted is deleted}) for deleted in (False, True))
    if live:
        raise errors.referenced(str(version.subject), version.version, live)
    if gone:
        raise errors.referenced_by_deleted(str(version.subject), version.version, gone)


def _tombstones(state: RegistryState, going: Iterable[StoredSchema]) -> list[Entry]:
    """With them the highest ids: compaction removes the records, and their ids must not come again."""
    return [noop(state), *(Entry(Key(Kind.SCHEMA, row.subject, row.version), None) for row in going)]


def _forget_settings(state: RegistryState, subject: Subject) -> list[Entry]:
    tables = ((Kind.CONFIG, state.configs), (Kind.MODE, state.modes))
    return [Entry(Key(kind, subject), None) for kind, table in tables if subject in table]
