"""About the cluster: `kafka-broker-api-versions`, `kafka-metadata-quorum` and `kafka-cluster`."""

import json
from collections.abc import Sequence

from millstream.cli import exit_codes
from millstream.cli.kafka_scripts.options import Options, UsageError, one_of, open_cluster


def broker_api_versions(name: str, words: Sequence[str]) -> int:
    from importlib.resources import files

    from millstream.admin.errors import check
    from millstream.formats.protocol.schema import request_schema, split_entries
    from millstream.version import VERSION

    parser = Options(name)
    parser.connection()
    options = parser.parsed(words)
    entries = split_entries(files("millstream.formats.protocol").joinpath("wire.schema").read_text())
    names = {request_schema(name).api_key: name for kind, name in entries if kind == "request"}
    with open_cluster(options) as cluster:
        for broker in cluster.brokers():
            response = cluster.call(
                "api_versions",
                node=broker.node_id,
                client_software_name="millstream",
                client_software_version=VERSION,
            )
            check(f"broker {broker.node_id}", response)
            rack = broker.rack or "null"
            print(f"{broker.host}:{broker.port} (id: {broker.node_id} rack: {rack} isFenced: false) -> (")
            lines = []
            for row in sorted(response.api_keys, key=lambda each: each.api_key):
                title = "".join(part.capitalize() for part in names.get(row.api_key, "unknown").split("_"))
                lines.append(f"\t{title}({row.api_key}): {row.min_version} to {row.max_version}")
            print(",\n".join(lines))
            print(")")
    return exit_codes.OK


def metadata_quorum(name: str, words: Sequence[str]) -> int:
    from millstream.admin.cluster import ClusterAdmin

    parser = Options(name)
    parser.values("--bootstrap-server", "--bootstrap-controller", "--command-config")
    parser.add_argument("command")
    parser.flags("--status", "--replication")
    options = parser.parsed(words)
    if options.command != "describe":
        raise UsageError(f"{options.command} is not provided: use `millstream cluster` to add and remove voters")
    action = one_of(options, "status", "replication")
    options.bootstrap_server = options.bootstrap_server or options.bootstrap_controller
    if options.bootstrap_server is None:
        raise UsageError("give --bootstrap-server or --bootstrap-controller")
    with open_cluster(options) as cluster:
        admin = ClusterAdmin(cluster)
        quorum = admin.quorum()
        if action == "replication":
            print("NodeId\tDirectoryId\tLogEndOffset\tLag\tStatus")
            for node in quorum.nodes:
                status = "Leader" if node.is_leader else "Follower" if node.is_voter else "Observer"
                print(f"{node.id}\t{node.directory_id}\t{node.log_end_offset}\t{node.lag or 0}\t{status}")
            return exit_codes.OK
        followers = [node for node in quorum.voters if not node.is_leader]
        rows = {
            "ClusterId": admin.describe().cluster_id,
            "LeaderId": quorum.leader,
            "LeaderEpoch": quorum.epoch,
            "HighWatermark": quorum.high_watermark,
            "MaxFollowerLag": max((node.lag or 0 for node in followers), default=0),
            "MaxFollowerLagTimeMs": max((node.behind_ms or 0 for node in followers), default=0),
            "CurrentVoters": json.dumps([{"id": node.id} for node in quorum.voters]),
            "CurrentObservers": json.dumps([{"id": node.id} for node in quorum.observers]),
        }
        for title, value in rows.items():
            print(f"{title + ':':<24}{value}")
    return exit_codes.OK


def cluster_id(name: str, words: Sequence[str]) -> int:
    parser = Options(name)
    parser.add_argument("command")
    parser.add_argument("--bootstrap-server", required=True)
    parser.values("--config", "--command-config")
    options = parser.parsed(words)
    options.command_config = options.command_config or options.config
    if options.command != "cluster-id":
        raise UsageError(f"{options.command} is not provided: use `millstream broker`")
    with open_cluster(options) as cluster:
        print(f"Cluster ID: {cluster.call('describe_cluster').cluster_id}")
    return exit_codes.OK
