"""One step of a member towards its target: what it must give up, what it may have already, what it waits for.

The order is what keeps two members from reading one partition: a member stays in its epoch until it has confirmed that
it gave up what the target takes from it; only then it enters the target's epoch, and is given what is free. What others
still have comes later, in the same epoch, as they let go of it.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from uuid import UUID

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.groups.core.consumer.assignment import Owned, Target
from millstream.node.groups.core.consumer.member import NOTHING, Member, MemberState

OwnerOf = Callable[[UUID, int], str | None]
"""The member that has a partition, or has yet to confirm that it gave it up."""


def reconcile(
    member: Member,
    target_epoch: int,
    target: Target,
    subscribed: Collection[UUID],
    owned: Mapping[UUID, Collection[int]] | None,
    owner_of: OwnerOf,
    *,
    subscription_changed: bool = False,
) -> Member:
    """The member after the step, itself if there is none to take.

    `owned` is what the member says it has, None if it does not say. What it is not `subscribed` to (any more) is taken
    from it even before the next target.
    """
    if member.state is MemberState.UNKNOWN:
        if owned is None or owned:
            raise KafkaError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                "The consumer group member is in an unknown state. It must abandon all its partitions and rejoin.",
            )
    elif member.state is MemberState.STABLE:
        if member.epoch == target_epoch:
            return _drop_unsubscribed(member, subscribed, owned) if subscription_changed else member
    elif member.state is MemberState.UNREVOKED and _still_has(owned, member.revoking):
        return _drop_unsubscribed(member, subscribed, owned) if subscription_changed else member
    return _next(member, target_epoch, target, subscribed, owned, owner_of)


def _next(
    member: Member,
    target_epoch: int,
    target: Target,
    subscribed: Collection[UUID],
    owned: Mapping[UUID, Collection[int]] | None,
    owner_of: OwnerOf,
) -> Member:
    kept: dict[UUID, dict[int, int]] = {}
    revoking: dict[UUID, dict[int, int]] = {}
    for topic_id, epochs in member.assigned.items():
        wanted = target.get(topic_id, frozenset()) if topic_id in subscribed else frozenset()
        for number, epoch in epochs.items():
            (kept if number in wanted else revoking).setdefault(topic_id, {})[number] = epoch
    if revoking and _still_has(owned, revoking):
        return replace(member, state=MemberState.UNREVOKED, assigned=kept, revoking=revoking)
    is_waiting = False
    for topic_id, numbers in target.items():
        if topic_id not in subscribed:
            continue
        for number in sorted(numbers - kept.get(topic_id, {}).keys()):
            # What this member itself has just confirmed to have given up is free for it, too.
            if owner_of(topic_id, number) in (None, member.id):
                kept.setdefault(topic_id, {})[number] = target_epoch
            else:
                is_waiting = True
    state = MemberState.UNRELEASED if is_waiting else MemberState.STABLE
    return with_epoch(replace(member, state=state, assigned=kept, revoking=NOTHING), target_epoch)


def _drop_unsubscribed(
    member: Member, subscribed: Collection[UUID], owned: Mapping[UUID, Collection[int]] | None
) -> Member:
    dropped = {topic_id: dict(numbers) for topic_id, numbers in member.assigned.items() if topic_id not in subscribed}
    if not dropped:
        return member
    assigned = {topic_id: numbers for topic_id, numbers in member.assigned.items() if topic_id in subscribed}
    revoking = {topic_id: dict(numbers) for topic_id, numbers in member.revoking.items()}
    for topic_id, numbers in dropped.items():
        revoking.setdefault(topic_id, {}).update(numbers)
    if _still_has(owned, revoking):
        return replace(member, state=MemberState.UNREVOKED, assigned=assigned, revoking=revoking)
    return replace(member, assigned=assigned)


def _still_has(owned: Mapping[UUID, Collection[int]] | None, revoking: Owned) -> bool:
    if owned is None:
        return True  # it did not say, so it may
    return any(number in revoking.get(topic_id, ()) for topic_id, numbers in owned.items() for number in numbers)


def with_epoch(member: Member, epoch: int) -> Member:
    if epoch == member.epoch:
        return member
    return replace(member, epoch=epoch, previous_epoch=member.epoch)
