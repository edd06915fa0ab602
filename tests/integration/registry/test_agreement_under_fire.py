"""Two registries on a cluster whose leader for `_schemas` is killed again and again: their responses stay true."""

import json
import threading
import time
from collections import defaultdict
from contextlib import ExitStack

import pytest

from millstream.raw_client import Cluster, TopicPartition
from millstream.registry.errors import RegistryError
from millstream.registry.log import SchemaLog
from millstream.registry.records import parse_subject
from millstream.registry.registering import SchemaRequest
from millstream.registry.registry import Registry
from millstream.testing import EmbeddedCluster
from tests.waiting import TIMEOUT_SECONDS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
KILLS = 3
SUBJECT = parse_subject("s")


def schema(number: int) -> SchemaRequest:
    fields = [{"name": f"field{number}", "type": "int", "default": 0}]
    return SchemaRequest(json.dumps({"type": "record", "name": "R", "fields": fields}))


def test_responses_stay_true_while_leaders_are_killed() -> None:
    with ExitStack() as stack:
        nodes = stack.enter_context(EmbeddedCluster(3))

        def start_registry() -> Registry:
            cluster = stack.enter_context(Cluster(nodes.bootstrap_servers, timeout_s=60))
            log = SchemaLog(cluster)
            stack.callback(log.close)
            log.start()
            return Registry(log)

        registries = [start_registry(), start_registry()]
        watch = stack.enter_context(Cluster(nodes.bootstrap_servers, timeout_s=60))
        responses: dict[int, set[tuple[int, int]]] = defaultdict(set)
        failures: list[BaseException] = []
        over = threading.Event()

        def register_on_and_on(registry: Registry) -> None:
            number = 0
            try:
                while not over.is_set():
                    try:
                        stored = registry.register(SUBJECT, schema(number))
                    except RegistryError as error:
                        assert error.code in (50001, 50002), error.message
                        continue  # as a client would: the same again
                    responses[number].add((stored.id, stored.version))
                    number += 1
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=register_on_and_on, args=(registry,)) for registry in registries]
        for thread in threads:
            thread.start()
        try:
            for _ in range(KILLS):
                before = len(responses)
                leader = watch.leader_of(TopicPartition("_schemas", 0)).node_id
                nodes.kill(leader)
                until = time.monotonic() + TIMEOUT_SECONDS
                while len(responses) < before + 10 and not failures and time.monotonic() < until:
                    time.sleep(0.1)
                nodes.start(leader)
                watch.refresh_leader("_schemas")
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert not failures, failures
        assert len(responses) > 10 * KILLS, "they went on all the time"
        assert all(len(given) == 1 for given in responses.values()), "both registries gave the same responses"
        ids = [next(iter(given))[0] for given in responses.values()]
        assert len(set(ids)) == len(ids), "no id was given to two schemas"
        newcomer = start_registry()
        kept = {(row.id, row.version): row.text for row in newcomer.versions(SUBJECT)}
        for number, given in responses.items():
            assert f'"field{number}"' in kept[next(iter(given))], (
                "the version of the response has the schema of the request"
            )
