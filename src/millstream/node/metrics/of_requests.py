"""Requests: how many, how long they took, which wait for something, what was refused."""

from millstream.formats.model.errors import ErrorCode
from millstream.node.metrics.exposition import Page, counter, gauge, histogram
from millstream.node.metrics.subject import ObservedNode, Subject, Turns
from millstream.node.server.dispatch import Dispatcher

DURATION = histogram(
    "millstream_request_duration_seconds",
    "From a whole request to its answer, waiting included (long polls, acks=all, fsync). Its _count is the number of "
    "requests. server is the role that answered, api Kafka's name; FetchFollower is a Fetch of another broker.",
    "server",
    "api",
)
REFUSED = counter(
    "millstream_requests_refused_total",
    "Requests that ended their connection: not well formed, not offered in this version, or acks=0 that failed.",
    "server",
)
ERRORS = counter(
    "millstream_partition_errors_total",
    "Partitions in Produce and Fetch requests that were answered with an error, by Kafka's name of it.",
    "api",
    "error",
)
WAITING = gauge(
    "millstream_purgatory_requests",
    "Requests that wait: Produce for replicas or the disk, fetches for something to read.",
    "api",
)
LONG_TURNS = histogram(
    "millstream_event_loop_long_turn_seconds",
    "Turns of the event loop above 50 ms that worked on a request of this API: nothing else was served meanwhile. The "
    "log names the peer.",
    "server",
    "api",
)


async def collect(node: ObservedNode, page: Page, turns: Turns) -> None:
    broker = node.broker
    servers: dict[str, Dispatcher] = {}
    if broker is not None:
        servers["broker"] = broker.dispatcher
    if node.controller is not None:
        servers["controller"] = node.controller.dispatcher
    for server, dispatcher in servers.items():
        for api, found in sorted(dispatcher.durations.items()):
            page.add_histogram(DURATION, found, server, kafka_name(api))
        for api, found in sorted(dispatcher.turns.long_turns.items()):
            page.add_histogram(LONG_TURNS, found, server, kafka_name(api))
        page.add(REFUSED, dispatcher.refused, server)
        await turns.pause()
    if broker is None:
        return
    for api, errors in (("Produce", broker.produce.errors), ("Fetch", broker.fetch.reader.errors)):
        for code, count in sorted(errors.items()):
            page.add(ERRORS, count, api, ErrorCode(code).name)
    page.add(WAITING, len(broker.produce.waiting), "Produce")
    page.add(WAITING, broker.fetch.waiting, "Fetch")
    page.add(WAITING, broker.fetch.waiting_followers, "FetchFollower")
    page.add(WAITING, broker.share_fetch.waiting, "ShareFetch")


def kafka_name(api: str) -> str:
    """list_offsets is ListOffsets to everybody else."""
    return "".join(word.capitalize() for word in api.split("_"))


REQUESTS = Subject("requests", (DURATION, LONG_TURNS, REFUSED, ERRORS, WAITING), collect)
