"""The process and its directories: `kafka-storage` and `kafka-server-start`."""

import os
import random
import re
from collections.abc import Sequence

from millstream.cli import exit_codes
from millstream.cli.kafka_scripts.options import Options, UsageError, failed


def storage(name: str, words: Sequence[str]) -> int:
    from millstream.config.loading import load_broker_config
    from millstream.config.table import node
    from millstream.node.runtime.disk import RealDisk
    from millstream.node.runtime.identity import Identity, random_uuid, read_identity, short_uuid, write_identity

    parser = Options(name)
    parser.add_argument("command")
    for short, long in (("-t", "--cluster-id"), ("-c", "--config")):
        parser.add_argument(short, long)
    parser.add_argument("-g", "--ignore-formatted", action="store_true")
    parser.add_argument("-s", "--standalone", action="store_true")
    options = parser.parsed(words)
    if options.command == "random-uuid":
        print(short_uuid(random_uuid(random.SystemRandom())))
        return exit_codes.OK
    if options.command != "format":
        raise UsageError(f"{options.command} is not provided. Known: format, random-uuid")
    if options.cluster_id is None or options.config is None:
        raise UsageError("format needs --cluster-id and --config")
    if not re.fullmatch(r"[A-Za-z0-9_-]{22}", options.cluster_id):
        raise UsageError(f"--cluster-id {options.cluster_id}: an id is 22 characters, as `random-uuid` prints")
    config = load_broker_config(file=options.config)
    disk = RealDisk()
    for directory in config.log_dirs:
        os.makedirs(directory, exist_ok=True)
        found = read_identity(disk, directory)
        if found is not None:
            if not options.ignore_formatted:
                return failed(name, f"Log directory {directory} is already formatted. Use --ignore-formatted")
            if found.cluster_id not in (None, options.cluster_id):
                return failed(name, f"{directory} belongs to cluster {found.cluster_id}")
            continue
        made = random_uuid(random.SystemRandom())
        write_identity(disk, directory, Identity(options.cluster_id, int(config[node.NODE_ID]), made))
        print(f"Formatting metadata directory {directory} with cluster id {options.cluster_id}.")
    return exit_codes.OK


def server_start(name: str, words: Sequence[str]) -> int:
    from millstream.cli import serve

    parser = Options(name)
    parser.add_argument("file")
    parser.lists("--override")
    options = parser.parsed(words)
    command = ["--config", options.file, "--no-http"]
    for each in options.override:
        command += ["--set", each]
    parsed = serve.parse(command)
    assert parsed is not None
    return serve.run(parsed)
