"""Whether a ConsumerGroupHeartbeat makes sense at all; what it means is `consumer_groups`' matter."""

from collections.abc import Collection
from uuid import UUID

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.schema import Message
from millstream.node.groups.core.consumer.member import JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH, Member
from millstream.node.groups.core.group import LONGEST_TEXT

_FIRST_VERSION_WITH_MEMBER_ID_OF_CLIENT = 1


def check_heartbeat(request: Message, version: int, assignors: Collection[str]) -> None:
    """KafkaError for a request that is wrong whatever the state of the group is."""
    epoch = request.member_epoch
    if version >= _FIRST_VERSION_WITH_MEMBER_ID_OF_CLIENT or epoch > 0 or epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
        _refuse_if(not request.member_id.strip(), "MemberId can't be empty.")
    _refuse_if(not request.group_id.strip(), "GroupId can't be empty.")
    _refuse_if(request.instance_id is not None and not request.instance_id.strip(), "InstanceId can't be empty.")
    _refuse_if(request.rack_id is not None and not request.rack_id.strip(), "RackId can't be empty.")
    for text in (request.member_id, request.instance_id, request.rack_id, request.subscribed_topic_regex):
        _refuse_if(text is not None and len(text) > LONGEST_TEXT, "A name or an expression is too long.")
    if epoch == LEAVE_STATIC_EPOCH:
        _refuse_if(request.instance_id is None, "InstanceId can't be null.")
    elif epoch < LEAVE_STATIC_EPOCH:
        _refuse_if(True, f"MemberEpoch is {epoch}, but must be greater than or equal to -2.")
    elif epoch == JOIN_EPOCH:
        _refuse_if(request.rebalance_timeout_ms == -1, "RebalanceTimeoutMs must be provided in first request.")
        _refuse_if(
            request.topic_partitions is None or bool(request.topic_partitions),
            "TopicPartitions must be empty when (re-)joining.",
        )
        _refuse_if(
            request.subscribed_topic_names is None and request.subscribed_topic_regex is None,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        )
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(assignors)}.",
        )


def _refuse_if(wrong: bool, message: str) -> None:
    if wrong:
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def owned_partitions(request: Message) -> dict[UUID, set[int]] | None:
    """What the member says it has; None if it does not say."""
    if request.topic_partitions is None:
        return None
    owned: dict[UUID, set[int]] = {}
    for row in request.topic_partitions:
        owned.setdefault(row.topic_id, set()).update(row.partitions)
    return {topic_id: numbers for topic_id, numbers in owned.items() if numbers}


def is_full(request: Message) -> bool:
    """The member tells everything: it has just joined, or is not sure that we heard the last time."""
    has_subscription = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    return request.rebalance_timeout_ms != -1 and has_subscription and request.topic_partitions is not None


def check_member_epoch(member: Member, epoch: int, owned: dict[UUID, set[int]] | None) -> None:
    """FENCED_MEMBER_EPOCH unless the member is where we think it is, or missed only our last answer."""
    if epoch in (member.epoch, JOIN_EPOCH):
        return
    if epoch == member.previous_epoch and epoch < member.epoch and owned is not None:
        within = all(numbers <= member.assigned.get(topic_id, {}).keys() for topic_id, numbers in owned.items())
        if within:
            return
    relation = "greater" if epoch > member.epoch else "smaller"
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {relation} member epoch ({epoch}) than the one known by the group "
        f"coordinator ({member.epoch}). The member must abandon all its partitions and rejoin.",
    )
