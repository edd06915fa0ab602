"""Metrics of simulated nodes: there is no process to ask, time is virtual, and a page is the same in every run."""

import asyncio

from millstream.simulator.cluster import CLIENT_PORT, Cluster
from millstream.simulator.machine import Process
from tests.integration.node.metrics.conftest import Scraped


class Scraper:
    """Asks until a node is ready, then for its metrics."""

    def __init__(self, process: Process, host: str) -> None:
        self._process = process
        self._host = host
        self.refusals: list[bytes] = []
        self.page = b""

    async def start(self) -> None:
        while not self.page:
            try:
                response = await self._get("/readyz")
                if response.startswith(b"HTTP/1.1 200"):
                    self.page = await self._get("/metrics")
                else:
                    self.refusals.append(response)
            except OSError:
                pass  # no one listens there yet
            await asyncio.sleep(0.05)

    def stop(self) -> None:
        return

    async def _get(self, path: str) -> bytes:
        transport = await self._process.network.connect(self._host, CLIENT_PORT)
        transport.send(f"GET {path} HTTP/1.1\r\n\r\n".encode())
        received, ended = bytearray(), asyncio.Event()

        def read() -> None:
            buffer = bytearray(65536)
            count = transport.receive_into(memoryview(buffer))
            received.extend(buffer[:count])
            if not count:
                transport.close()
                ended.set()

        transport.watch_readable(read)
        await ended.wait()
        return bytes(received)


def scraped(seed: str) -> tuple[list[bytes], bytes]:
    complaints: list[object] = []
    cluster = Cluster(seed, ["broker,controller"] * 3, report_error=lambda *what: complaints.append(what))
    cluster.start()
    scrapers: list[Scraper] = []

    def make(process: Process) -> Scraper:
        scrapers.append(Scraper(process, "node1"))
        return scrapers[-1]

    cluster.add_client("prometheus", make)
    cluster.scheduler.run(until=30.0, stop=lambda: bool(scrapers and scrapers[0].page))
    cluster.close()
    assert not complaints and scrapers[0].page
    return scrapers[0].refusals, scrapers[0].page


def test_a_simulated_node_is_like_any_other_and_the_same_every_time() -> None:
    refusals, page = scraped("7")
    assert any(b"503" in response and b"not registered" in response for response in refusals)
    head, _, body = page.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    shown = Scraped(body.decode())
    assert shown("millstream_node_ready") == 1 and shown("millstream_quorum_voters") == 3
    assert "process_open_fds" not in shown.families
    assert scraped("7") == (refusals, page)
