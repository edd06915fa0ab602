"""Metrics of clients: what they pushed to this broker (KIP-714), a few metrics of each client."""

from millstream.common.prometheus import Page, counter, gauge
from millstream.node.metrics.observed_node import MetricsSubject, ObservedNode, TimeSlices

MOST_CLIENTS = 100
"""Clients with series of their own: those that pushed last."""

INSTANCES = gauge(
    "millstream_client_metrics_clients", "Clients that asked this broker for their subscription, or pushed."
)
PUSHES = counter("millstream_client_metrics_pushes_total", "Pushes of clients that were accepted.")
REFUSED = counter(
    "millstream_client_metrics_refused_total", "Refused requests of clients, by Kafka's name of the error.", "error"
)
DROPPED = counter(
    "millstream_client_metrics_dropped_total", "Pushes that were not written to the topic __millstream_client_metrics."
)
VALUE = gauge(
    "millstream_client_metric",
    "The newest value of a metric that a client pushed; the largest one if it has several. metric is Kafka's name "
    "without org.apache.kafka. Times are in ms. At most 100 clients: those that pushed last. All metrics of all "
    "clients are in the topic __millstream_client_metrics.",
    "client_id",
    "software",
    "metric",
)


async def collect_clients(node: ObservedNode, page: Page, turns: TimeSlices) -> None:
    if node.broker is None:
        return
    found = node.broker.client_metrics
    page.add(INSTANCES, len(found.instances))
    page.add(PUSHES, found.pushes)
    page.add(DROPPED, found.dropped)
    for error, count in sorted(found.refused.items()):
        page.add(REFUSED, count, error)
    values: dict[tuple[str, str, str], float] = {}
    for instance in [each for each in found.instances.all if each.known][-MOST_CLIENTS:]:
        for metric, value in instance.known.items():
            key = instance.identity["client_id"], instance.identity["client_software_name"], metric
            values[key] = max(value, values.get(key, value))
        await turns.pause()
    for labels, value in sorted(values.items()):
        page.add(VALUE, value, *labels)


CLIENTS = MetricsSubject("clients", (INSTANCES, PUSHES, REFUSED, DROPPED, VALUE), collect_clients)
