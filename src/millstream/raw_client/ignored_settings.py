"""Names of Kafka's clients that are known and mean nothing to this one.

They say how Java's or librdkafka's own consumers, producers and threads behave; whoever passes a client's settings on
need not pick them out. `Cluster.settings.ignored` lists those that were given.
"""

_NAMES = """
# The address is given otherwise; a PEM store has no password of its own.
bootstrap.servers metadata.broker.list ssl.truststore.password ssl.keystore.password
# When to look up, reconnect and try again: this client decides by itself.
auto.include.jmx.reporter bootstrap.controllers client.dns.lookup client.rack connections.max.idle.ms
metadata.max.age.ms metadata.max.idle.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy
reconnect.backoff.max.ms reconnect.backoff.ms retries retry.backoff.max.ms retry.backoff.ms
socket.connection.setup.timeout.max.ms topic.metadata.refresh.interval.ms topic.metadata.refresh.sparse
topic.metadata.refresh.fast.interval.ms topic.metadata.propagation.max.ms api.version.request
api.version.request.timeout.ms api.version.fallback.ms broker.version.fallback broker.address.ttl
socket.max.fails socket.nagle.disable socket.blocking.max.ms max.in.flight message.max.bytes
receive.message.max.bytes message.copy.max.bytes
# Metrics, logs, plug-ins.
config.providers enable.metrics.push interceptor.classes metric.reporters metrics.num.samples
metrics.recording.level metrics.sample.window.ms security.providers statistics.interval.ms debug log_level
log.queue log.thread.name log.connection.close enable.random.seed internal.termination.signal
ssl.engine.factory.class ssl.keymanager.algorithm ssl.trustmanager.algorithm ssl.provider
ssl.secure.random.implementation
sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
sasl.login.refresh.window.jitter sasl.login.connect.timeout.ms sasl.login.read.timeout.ms
sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms
# Of consumers.
allow.auto.create.topics auto.commit.interval.ms auto.offset.reset check.crcs enable.auto.commit
enable.auto.offset.store enable.partition.eof exclude.internal.topics fetch.error.backoff.ms fetch.max.bytes
fetch.max.wait.ms fetch.message.max.bytes fetch.min.bytes fetch.wait.max.ms group.id group.instance.id
group.protocol group.remote.assignor heartbeat.interval.ms isolation.level key.deserializer
max.partition.fetch.bytes max.poll.interval.ms max.poll.records partition.assignment.strategy
queued.max.messages.kbytes queued.min.messages session.timeout.ms value.deserializer
# Of producers.
acks batch.num.messages batch.size buffer.memory compression.codec compression.gzip.level compression.level
compression.lz4.level compression.type compression.zstd.level delivery.timeout.ms enable.idempotence key.serializer
linger.ms max.block.ms max.in.flight.requests.per.connection max.request.size message.send.max.retries
message.timeout.ms partitioner partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms
partitioner.class partitioner.ignore.keys queue.buffering.max.kbytes queue.buffering.max.messages
queue.buffering.max.ms request.required.acks sticky.partitioning.linger.ms
transaction.timeout.ms transaction.two.phase.commit.enable transactional.id value.serializer
"""
IGNORED: frozenset[str] = frozenset(
    name for line in _NAMES.splitlines() if not line.startswith("#") for name in line.split()
)
