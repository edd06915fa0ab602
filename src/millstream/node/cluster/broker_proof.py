"""How a broker proves to another that it is one, and which listener serves the APIs of the cluster.

With an authorizer, a broker is who may CLUSTER_ACTION: the authorizer alone decides. Without one there is no identity
to decide by. Then a broker sends its node id and the incarnation id of its registration with the first request of each
connection (ApiVersions). The incarnation id is random, and only the metadata log has it: a client that reaches only
the brokers' listeners cannot know it, whatever its client id is. And it must come over the listener of the brokers. Who
reaches a controller's listener without an authorizer can read the metadata log, as in Kafka: keep that port closed.
"""

from collections.abc import Callable
from hmac import compare_digest

from millstream.config.broker_config import BrokerConfig
from millstream.formats.model.access_control import CLUSTER_NAME, AclOperation, AclResourceType
from millstream.formats.model.identifiers import BrokerId
from millstream.formats.protocol.schema import request_schema
from millstream.node.metadata.image import MetadataImage
from millstream.node.server.authorization import Authorizer
from millstream.node.server.request import BROKER_SOFTWARE, ListenerRules
from millstream.node.server.service import Peer

_BROKER_APIS = (
    "write_txn_markers",
    "initialize_share_group_state",
    "read_share_group_state",
    "write_share_group_state",
    "delete_share_group_state",
    "read_share_group_state_summary",
)
"""The APIs of a broker that other brokers send. Those of a controller are on its own listeners alone."""


def broker_software(image: MetadataImage, node_id: int) -> tuple[str, str]:
    """Name and version in the ApiVersions request of a broker: the version is `id.incarnation`."""
    own = image.brokers.get(BrokerId(node_id))
    return BROKER_SOFTWARE, f"{node_id}." + ("unregistered" if own is None else own.incarnation_id.hex)


def is_proved(image: MetadataImage, claim: str) -> bool:
    """Whether a claim is that of a registered broker."""
    number, _, incarnation = claim.partition(".")
    if not (number.isascii() and number.isdigit() and len(number) <= 10):
        return False
    broker = image.brokers.get(BrokerId(int(number)))
    return broker is not None and compare_digest(incarnation.encode(), broker.incarnation_id.hex.encode())


def listener_rules(config: BrokerConfig, authorizer: Authorizer, image: Callable[[], MetadataImage]) -> ListenerRules:
    """The rules of a broker's listeners."""
    between_brokers = config.inter_broker_listener
    clients = frozenset(each.name for each in config.listeners if each.name != between_brokers)
    hidden = set(_BROKER_APIS)
    if authorizer.is_enabled:
        # Kafka's tools end hanging transactions with it; ALTER of the cluster is needed then.
        hidden.remove("write_txn_markers")

    def is_broker(peer: Peer) -> bool:
        if authorizer.is_enabled:
            return authorizer.sees(peer, AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER, CLUSTER_NAME)
        return peer.listener == between_brokers and is_proved(image(), peer.broker_claim)

    return ListenerRules(clients, frozenset(request_schema(name).api_key for name in hidden), is_broker)
