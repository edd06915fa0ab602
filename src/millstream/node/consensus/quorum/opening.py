"""The quorum of a node as its settings want it."""

import logging
from collections.abc import Callable
from uuid import UUID

from millstream.config.broker_config import BrokerConfig
from millstream.config.table import cluster, node
from millstream.config.topic_config import metadata_log_config
from millstream.node.consensus.quorum.metadata_log import MetadataLog
from millstream.node.consensus.quorum.metadata_quorum import MetadataQuorum
from millstream.node.consensus.quorum.quorum_state import QuorumStateFile
from millstream.node.consensus.quorum.snapshot_writer import Retention
from millstream.node.consensus.raft.messages import Peer
from millstream.node.consensus.raft.settings import QuorumSettings
from millstream.node.consensus.raft.voter_set import Endpoint, ReplicaKey, Voter, VoterSet
from millstream.node.environment import Environment
from millstream.node.storage.disk import Disk
from millstream.node.storage.log.log_directory import LogDirectory

_log = logging.getLogger("millstream.quorum")
_FIRST_BOOTSTRAP_ID = -2
"""Bootstrap servers are peers whose ids are not known: raft counts them down from here."""


def open_quorum(
    config: BrokerConfig,
    logs: LogDirectory,
    disk: Disk,
    environment: Environment,
    *,
    directory_id: UUID,
    cluster_id: str | None,
    endpoints: tuple[Endpoint, ...],
    on_fatal: Callable[[str], None],
) -> MetadataQuorum:
    """Opens the metadata log, or makes it; ConfigError if it cannot be trusted. Whoever listens is subscribed before
    `start`.

    `endpoints` are this node's controller listeners as others reach them. A node that names no controller but itself is
    a quorum of one.
    """
    log = MetadataLog.open(logs, disk, metadata_log_config(config), environment)
    names = config[node.CONTROLLER_LISTENER_NAMES]
    listener_name = endpoints[0].name if endpoints else (names[0].upper() if names else "CONTROLLER")
    voters = VoterSet(
        tuple(
            Voter(ReplicaKey(voter.id), (Endpoint(listener_name, voter.host, voter.port),)) for voter in config.voters
        )
    )
    if not voters and config.is_alone:
        voters = VoterSet((Voter(ReplicaKey(config.node_id), endpoints),))
    if not voters and config.is_controller and cluster_id is None:
        _log.warning(
            "no_voters_named this node waits until it can follow a quorum at controller.quorum.bootstrap.servers. The "
            "first nodes of a new cluster need to know who votes: set controller.quorum.voters=id@host:port,... on each"
        )
    return MetadataQuorum(
        node_id=config.node_id,
        directory_id=directory_id,
        cluster_id=cluster_id,
        log=log,
        state=QuorumStateFile(disk, log.partition.directory),
        static_voters=voters,
        bootstrap_servers=tuple(
            Peer(_FIRST_BOOTSTRAP_ID - at, (Endpoint(listener_name, host, port),))
            for at, (host, port) in enumerate(config.bootstrap_servers)
        ),
        may_vote=config.is_controller,
        endpoints=endpoints,
        listener_name=listener_name,
        settings=_settings(config),
        retention=Retention(
            bytes=config[cluster.METADATA_MAX_RETENTION_BYTES], ms=config[cluster.METADATA_MAX_RETENTION_MS]
        ),
        environment=environment,
        on_fatal=on_fatal,
    )


def _settings(config: BrokerConfig) -> QuorumSettings:
    return QuorumSettings(
        election_timeout_ms=config[cluster.CONTROLLER_QUORUM_ELECTION_TIMEOUT_MS],
        fetch_timeout_ms=config[cluster.CONTROLLER_QUORUM_FETCH_TIMEOUT_MS],
        election_backoff_max_ms=config[cluster.CONTROLLER_QUORUM_ELECTION_BACKOFF_MAX_MS],
        request_timeout_ms=config[cluster.CONTROLLER_QUORUM_REQUEST_TIMEOUT_MS],
        retry_backoff_ms=config[cluster.CONTROLLER_QUORUM_RETRY_BACKOFF_MS],
        fetch_max_bytes=config[cluster.CONTROLLER_QUORUM_FETCH_MAX_BYTES],
        snapshot_chunk_bytes=config[cluster.CONTROLLER_QUORUM_FETCH_SNAPSHOT_MAX_BYTES],
    )
