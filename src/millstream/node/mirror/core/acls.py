"""Which ACLs a link adds and removes here, so that they are as at the source: whole states are compared each time.

The id of an ACL says whether a link copied it (`security/core/changes.py`), so a link removes only ACLs of its own, and
another broker, or a broker after a restart, removes the same ones. An ACL that was made here stays, also if the source
had the same one. ACLs of promoted topics stay as they were at the promotion: the source does not decide on them then.
"""

from collections.abc import Iterable, Iterator

from millstream.common.lazy_dataclass import dataclass
from millstream.formats.model.access_control import AclPatternType, AclResourceType
from millstream.node.metadata.records import AccessControlEntryRecord
from millstream.node.mirror.core.links import Link, MirrorTopic
from millstream.node.security.core.changes import AclBinding, binding_of, mirrored_id


@dataclass(frozen=True, slots=True)
class AclChanges:
    additions: tuple[AclBinding, ...] = ()
    removals: tuple[AclBinding, ...] = ()


def acl_changes(
    link: Link,
    mirrors: Iterable[MirrorTopic],
    source: Iterable[AclBinding],
    here: Iterable[AccessControlEntryRecord],
) -> AclChanges:
    """`mirrors`: the topics that follow the source now; `source`: all its ACLs; `here`: all ACLs of this cluster."""
    names = {mirror.source_name: mirror.name for mirror in mirrors}
    if not names:
        return AclChanges()  # all were promoted, or none was made yet
    wanted = dict.fromkeys(_wanted(link, names, source))
    existing = {binding_of(acl): acl.id for acl in here}
    removals = (
        binding
        for binding, acl_id in existing.items()
        if binding not in wanted and acl_id == mirrored_id(link.name, binding) and _follows(binding, names.values())
    )
    return AclChanges(tuple(binding for binding in wanted if binding not in existing), tuple(removals))


def _wanted(link: Link, names: Iterable[str], source: Iterable[AclBinding]) -> Iterator[AclBinding]:
    """The ACLs of the source for its mirrored topics and groups, under the names of this cluster."""
    for acl in source:
        is_prefix = acl.pattern_type == AclPatternType.PREFIXED
        if acl.resource_type == AclResourceType.TOPIC:
            if _is_for(acl, names):
                yield _renamed(acl, link.prefix + acl.resource_name)
        elif acl.resource_type == AclResourceType.GROUP and (is_prefix or link.wants_group(acl.resource_name)):
            yield acl


def _is_for(acl: AclBinding, names: Iterable[str]) -> bool:
    if acl.pattern_type == AclPatternType.PREFIXED:
        return any(name.startswith(acl.resource_name) for name in names)
    return acl.resource_name in names


def _follows(acl: AclBinding, names: Iterable[str]) -> bool:
    """Whether the source decides on an ACL of this cluster."""
    return acl.resource_type == AclResourceType.GROUP or _is_for(acl, names)


def _renamed(acl: AclBinding, name: str) -> AclBinding:
    return AclBinding(acl.resource_type, name, acl.pattern_type, acl.principal, acl.host, acl.operation, acl.permission)
