"""Deleting and registering again: a version that another schema refers to stays, also while that schema is deleted."""

import pytest

from millstream.registry.errors import RegistryError
from millstream.registry.records import Reference, parse_subject
from millstream.registry.registering import SchemaRequest
from millstream.registry.registry import Registry

USED, USER = parse_subject("used"), parse_subject("user")
PART = '{"type":"record","name":"Part","fields":[]}'
WHOLE = '{"type":"record","name":"Whole","fields":[{"name":"part","type":"Part"}]}'


def register_both(registry: Registry, version: int = 1) -> int:
    """The id of the schema that refers to the other one."""
    registry.register(USED, SchemaRequest(PART))
    return registry.register(USER, SchemaRequest(WHOLE, references=(Reference("Part", "used", version),))).id


def test_a_version_that_a_deleted_schema_refers_to_survives_registering_again(registry: Registry) -> None:
    user_id = register_both(registry)
    first = registry.version(USED, 1)
    registry.deleter.delete_subject(USER, permanent=False)
    registry.deleter.delete_subject(USED, permanent=False)
    again = registry.register(USED, SchemaRequest(PART))
    assert (again.version, again.id) == (2, first.id), "the same schema keeps its id and gets a new version"
    assert [row.version for row in registry.versions(USED, deleted=True)] == [1, 2]
    assert registry.parser.parse_error(registry.by_id(user_id)) is None, "records with this id can still be read"


def test_a_version_that_only_its_own_subject_refers_to_survives_as_well(registry: Registry) -> None:
    registry.settings.set_config(USED, {"compatibility": "NONE"})
    registry.register(USED, SchemaRequest(PART))
    whole = registry.register(USED, SchemaRequest(WHOLE, references=(Reference("Part", "used", 1),)))
    registry.deleter.delete_subject(USED, permanent=False)
    registry.register(USED, SchemaRequest(PART))
    assert registry.parser.parse_error(registry.by_id(whole.id)) is None


def test_a_deleted_version_without_users_goes_when_its_schema_is_registered_again(registry: Registry) -> None:
    registry.register(USED, SchemaRequest(PART))
    registry.deleter.delete_subject(USED, permanent=False)
    registry.register(USED, SchemaRequest(PART))
    assert [row.version for row in registry.versions(USED, deleted=True)] == [2]


def test_what_a_deleted_schema_refers_to_is_not_deleted_for_good(registry: Registry) -> None:
    user_id = register_both(registry)
    registry.deleter.delete_subject(USER, permanent=False)
    registry.deleter.delete_subject(USED, permanent=False)
    for delete in (
        lambda: registry.deleter.delete_subject(USED, permanent=True),
        lambda: registry.deleter.delete_version(USED, 1, permanent=True),
    ):
        with pytest.raises(RegistryError, match=f"soft deleted: delete schema ids {user_id} permanently") as refused:
            delete()
        assert refused.value.code == 42206
    assert registry.parser.parse_error(registry.by_id(user_id)) is None
    registry.deleter.delete_subject(USER, permanent=True)
    assert registry.deleter.delete_subject(USED, permanent=True) == [1]


def test_a_reference_to_the_latest_version_is_kept_as_that_version(registry: Registry) -> None:
    user_id = register_both(registry, version=-1)
    assert registry.by_id(user_id).references == (Reference("Part", "used", 1),)
    with pytest.raises(RegistryError, match="One or more references exist"):
        registry.deleter.delete_version(USED, None, permanent=False)


def test_a_reference_that_is_gone_when_the_schema_is_stored_is_refused(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.register(USED, SchemaRequest(PART))
    request = SchemaRequest(WHOLE, references=(Reference("Part", "used", 1),))
    write = registry._log.write

    def delete_just_before(decide):  # type: ignore[no-untyped-def]
        monkeypatch.setattr(registry._log, "write", write)
        registry.deleter.delete_subject(USED, permanent=False)
        registry.deleter.delete_subject(USED, permanent=True)
        write(decide)

    monkeypatch.setattr(registry._log, "write", delete_just_before)
    with pytest.raises(RegistryError, match="which does not exist"):
        registry.register(USER, request)


OTHER = '{"type":"record","name":"Part","fields":[{"name":"a","type":"int"}]}'


@pytest.mark.parametrize("user_is_deleted", [False, True], ids=["live", "soft deleted"])
def test_an_import_does_not_replace_a_version_that_others_refer_to(registry: Registry, user_is_deleted: bool) -> None:
    user_id = register_both(registry)
    if user_is_deleted:
        registry.deleter.delete_subject(USER, permanent=False)
    registry.settings.set_mode(USED, "IMPORT", force=True)
    with pytest.raises(
        RegistryError, match=f"version 1: import this schema as another version.* {user_id} "
    ) as refused:
        registry.register(USED, SchemaRequest(OTHER, id=900, version=1))
    assert refused.value.code == 42206
    assert [row.text for row in registry.versions(USED)] == [PART]
    # The same schema may be imported over itself, and another one beside it.
    assert registry.register(USED, SchemaRequest(PART, id=901, version=1)).version == 1
    assert registry.register(USED, SchemaRequest(OTHER, id=900, version=2)).version == 2
    assert registry.parser.parse_error(registry.by_id(user_id)) is None


def test_an_import_replaces_a_version_without_users(registry: Registry) -> None:
    registry.register(USED, SchemaRequest(PART))
    registry.settings.set_mode(USED, "IMPORT", force=True)
    registry.register(USED, SchemaRequest(OTHER, id=900, version=1))
    assert [(row.id, row.text) for row in registry.versions(USED)] == [(900, OTHER)]
