"""The queue of the audit log: bounded, written again after a failure, and silent when it is off."""

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from millstream.config.loading import load_broker_config
from millstream.formats.model.access_control import AclOperation, AclResourceType
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.schema import request_schema
from millstream.node.security.audit_log import AuditLog
from millstream.node.server.service import Peer

PEER = Peer("10.0.0.1", 1, "CLIENT")


def audit_log(loop: asyncio.AbstractEventLoop, *settings: str) -> AuditLog:
    config = load_broker_config(overrides=list(settings))
    environment: Any = SimpleNamespace(
        loop=loop,
        clock=SimpleNamespace(now_ms=lambda: 7),
        randomness=random.Random(1),
        offload=lambda work: loop.run_in_executor(None, work),
    )
    return AuditLog(lambda: config, environment)


def fail(log: AuditLog, count: int) -> None:
    for number in range(count):
        log.authentication(PEER, "PLAIN", succeeded=False, reason=str(number))


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110  # the log has no event for it
            await asyncio.sleep(0.01)


def test_a_log_without_a_topic_records_nothing() -> None:
    async def run() -> None:
        log = audit_log(asyncio.get_running_loop())
        fail(log, 3)
        assert (log.recorded, log.is_enabled, log.samples_data) == (0, False, False)

    asyncio.run(run())


def test_allowed_access_to_records_is_sampled() -> None:
    async def run() -> None:
        for sample, least, most in (("0", 0, 0), ("0.25", 200, 300), ("1", 1000, 1000)):
            log = audit_log(
                asyncio.get_running_loop(), "millstream.audit.enable=true", f"millstream.audit.data.sample={sample}"
            )
            for _ in range(1000):
                log.data_access(PEER, AclOperation.READ, AclResourceType.TOPIC, "orders")
            assert least <= log.recorded <= most  # the randomness has a seed

    asyncio.run(run())


def test_a_full_queue_drops_and_says_so() -> None:
    async def run() -> None:
        log = audit_log(asyncio.get_running_loop(), "millstream.audit.enable=true", "millstream.audit.queue.events=2")
        written: list[dict[str, Any]] = []

        async def write(batch: list[bytes]) -> None:
            written.extend(map(json.loads, batch))

        fail(log, 5)
        assert (log.recorded, log.dropped) == (2, 3)
        log.write_to(write)
        await until(lambda: len(written) >= 2)
        fail(log, 1)
        await until(lambda: len(written) >= 3)
        assert written[2]["dropped_before"] == 3
        log.close()

    asyncio.run(run())


def test_failed_logins_do_not_push_out_administration() -> None:
    async def run() -> None:
        log = audit_log(asyncio.get_running_loop(), "millstream.audit.enable=true", "millstream.audit.queue.events=8")
        fail(log, 20)
        assert log.recorded == 6
        request = request_schema("delete_topics").root.new()
        for _ in range(3):
            log.administration(PEER, "delete_topics", request, {"responses": []})
        assert (log.recorded, log.dropped) == (8, 15)
        log.close()

    asyncio.run(run())


def test_events_are_written_again_in_their_order() -> None:
    async def run() -> None:
        log = audit_log(asyncio.get_running_loop(), "millstream.audit.enable=true")
        written: list[str] = []
        failures = [KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "later")]

        async def write(batch: list[bytes]) -> None:
            if failures:
                raise failures.pop()
            written.extend(json.loads(each)["reason"] for each in batch)

        log.write_to(write)
        fail(log, 4)
        await until(lambda: len(written) >= 4)
        assert written == ["0", "1", "2", "3"]
        log.close()

    asyncio.run(run())


def test_the_file_is_rotated_and_gets_the_rest_at_the_end(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"

    async def run() -> None:
        settings = (
            "millstream.audit.enable=true",
            f"millstream.audit.file={file}",
            "millstream.audit.file.max.bytes=300",
        )
        log = audit_log(asyncio.get_running_loop(), *settings)
        for _ in range(2):
            fail(log, 1)
            log.close()  # without a broker nothing else writes

    asyncio.run(run())
    assert len(file.read_text().splitlines()) == 1
    assert len((tmp_path / "audit.jsonl.1").read_text().splitlines()) == 1
    assert file.stat().st_mode & 0o777 == 0o600
