"""Settings of Kafka without effect, grouped by the reason.

They are known, so that a `server.properties` file of Kafka causes no warnings about unknown settings. Their types are
checked. A value that was set is named at the start; docs/settings.md and DescribeConfigs say that it has no effect.

The format of a line: name, type, default (`-` is null, `""` is empty), importance, bounds; `dynamic` if Kafka accepts a
change for all brokers while they run, so that a script that makes one does not fail.
"""

import json
from dataclasses import replace
from typing import Any

from millstream.config.setting import Importance, Setting, SettingType, Update, at_least, between

_GROUPS = {
    "the broker runs on one event loop with a small thread pool, without a JVM": """
        background.threads int 10 high 1..
        kafka.metrics.polling.interval.secs int 10 low 1..
        kafka.metrics.reporters list "" low
        metric.reporters list - low
        metrics.num.samples int 2 low 1..
        metrics.recording.level string INFO low
        metrics.sample.window.ms long 30000 low 1..
        num.io.threads int 8 high 1..
        num.network.threads int 3 high 1..
    """,
    "recovery after an unclean shutdown checks one log at a time": """
        num.recovery.threads.per.data.dir int 2 high 1..
    """,
    "log start offsets are written at log.flush.offset.checkpoint.interval.ms": """
        log.flush.start.offset.checkpoint.interval.ms int 60000 high 0..
    """,
    "queued requests are limited by their size, queued.max.request.bytes": """
        queued.max.requests int 500 high 1..
    """,
    "delayed requests are completed by events; there is no purgatory to purge": """
        delete.records.purgatory.purge.interval.requests int 1 medium
        fetch.purgatory.purge.interval.requests int 1000 medium
        producer.purgatory.purge.interval.requests int 1000 medium
    """,
    "nodes use one connection per purpose to each other": """
        alter.log.dirs.replication.quota.window.num int 11 low 1..
        alter.log.dirs.replication.quota.window.size.seconds int 1 low 1..
        controller.quorum.append.linger.ms int 25 medium 0..
        controller.quorum.auto.join.enable boolean false low
        controller.socket.timeout.ms int 30000 medium
        early.start.listeners list - high
        num.replica.alter.log.dirs.threads int - high
        replica.socket.receive.buffer.bytes int 65536 high
        replication.quota.window.num int 11 low 1..
        replication.quota.window.size.seconds int 1 low 1..
        request.timeout.ms int 30000 high
        socket.connection.setup.timeout.max.ms long 30000 medium
        socket.connection.setup.timeout.ms long 10000 medium
    """,
    "the metadata log is written without delay": """
        metadata.max.idle.interval.ms int 500 low 0..
    """,
    "group coordinators write without delay on one event loop": """
        group.coordinator.append.linger.ms int -1 medium -1..
        group.coordinator.background.threads int 2 high 1..
        group.coordinator.cached.buffer.max.bytes int 1048588 medium 524288..
        group.coordinator.rebalance.protocols list classic,consumer,streams medium
        group.coordinator.threads int 4 high 1..
        offsets.load.buffer.size int 5242880 high 1..
        offsets.topic.compression.codec int 0 high
    """,
    "share groups assign and write without delay": """
        group.share.assignment.interval.ms int 1000 medium 0..
        group.share.max.assignment.interval.ms int 15000 medium 0..
        group.share.min.assignment.interval.ms int 0 medium 0..
        share.coordinator.append.linger.ms int -1 medium -1..
        share.coordinator.cached.buffer.max.bytes int 1048588 medium 524288..
        share.coordinator.load.buffer.size int 5242880 high 1..
        share.coordinator.state.topic.compression.codec int 0 high
        share.coordinator.state.topic.min.isr short 2 high 1..
        share.coordinator.threads int 1 medium 1..
        share.fetch.purgatory.purge.interval.requests int 1000 medium
    """,
    "the transaction coordinator loads its partitions in parts of a fixed size": """
        transaction.state.log.load.buffer.size int 5242880 high 1..
    """,
    "tiered storage has no threads of its own but those of the store's client": """
        remote.log.manager.expiration.thread.pool.size int 10 medium 1.. dynamic
        remote.log.manager.follower.thread.pool.size int 2 medium 1.. dynamic
        remote.log.manager.thread.pool.size int 2 medium 1..
        remote.log.reader.max.pending.tasks int 100 medium 1..
    """,
    "a fetch of tiered records waits as any other fetch: for the client's `fetch.max.wait.ms`": """
        remote.fetch.max.wait.ms int 500 medium 1.. dynamic
    """,
    "new followers always start where the tier ends": """
        follower.fetch.last.tiered.offset.enable boolean false medium dynamic
    """,
    "the rate of uploads and reads is limited over one second": """
        remote.log.manager.copy.quota.window.num int 11 medium 1..
        remote.log.manager.copy.quota.window.size.seconds int 1 medium 1..
        remote.log.manager.fetch.quota.window.num int 11 medium 1..
        remote.log.manager.fetch.quota.window.size.seconds int 1 medium 1..
    """,
    "tiered storage has no plug-ins in Java: set `millstream.tier.url`": """
        remote.log.metadata.custom.metadata.max.bytes int 128 low 0..
        remote.log.metadata.manager.class.name string - medium
        remote.log.metadata.manager.class.path string - medium
        remote.log.metadata.manager.impl.prefix string rlmm.config. medium
        remote.log.metadata.manager.listener.name string - medium
        remote.log.storage.manager.class.name string - medium
        remote.log.storage.manager.class.path string - medium
        remote.log.storage.manager.impl.prefix string rsm.config. medium
    """,
    "TLS is OpenSSL's, without Java's providers": """
        security.providers string - low
        ssl.keymanager.algorithm string SunX509 medium
        ssl.provider string - medium
        ssl.secure.random.implementation string - low
        ssl.trustmanager.algorithm string PKIX medium
    """,
    "Kerberos tickets are renewed from the keytab by the system's library": """
        sasl.kerberos.kinit.cmd string /usr/bin/kinit medium
        sasl.kerberos.min.time.before.relogin long 60000 medium
        sasl.kerberos.ticket.renew.jitter double 0.05 medium
        sasl.kerberos.ticket.renew.window.factor double 0.8 medium
    """,
    "SASL plug-ins in Java and signed requests for tokens are not supported": """
        sasl.client.callback.handler.class class - medium
        sasl.login.class class - medium
        sasl.login.connect.timeout.ms int - low
        sasl.login.read.timeout.ms int - low
        sasl.login.refresh.buffer.seconds short 300 medium
        sasl.login.refresh.min.period.seconds short 60 medium
        sasl.login.refresh.window.factor double 0.8 medium
        sasl.login.refresh.window.jitter double 0.05 medium
        sasl.login.retry.backoff.max.ms long 10000 low
        sasl.login.retry.backoff.ms long 100 low
        sasl.oauthbearer.assertion.algorithm string RS256 medium
        sasl.oauthbearer.assertion.claim.aud string - medium
        sasl.oauthbearer.assertion.claim.exp.seconds int 300 low 0..86400
        sasl.oauthbearer.assertion.claim.iss string - medium
        sasl.oauthbearer.assertion.claim.jti.include boolean false medium
        sasl.oauthbearer.assertion.claim.nbf.seconds int 60 low 0..3600
        sasl.oauthbearer.assertion.claim.sub string - medium
        sasl.oauthbearer.assertion.file string - medium
        sasl.oauthbearer.assertion.private.key.file string - medium
        sasl.oauthbearer.assertion.private.key.passphrase password - medium
        sasl.oauthbearer.assertion.template.file string - medium
        sasl.oauthbearer.jwt.retriever.class class - medium
    """,
    "a failed disk is detected by the first operation that fails": """
        log.dir.failure.timeout.ms long 30000 low 1..
    """,
}


def _declare(line: str, reason: str) -> Setting[Any]:
    name, kind, default_text, importance, *rest = line.split()
    bounds = [word for word in rest if word != "dynamic"]
    kind_of = SettingType[kind.upper()]
    setting: Setting[Any] = Setting(
        name=name,
        type=kind_of,
        default=None,
        nullable=default_text == "-",
        explanation="",
        importance=Importance(importance),
        without_effect=reason,
        update=Update.CLUSTER_WIDE if "dynamic" in rest else Update.RESTART,
    )
    default = None if default_text == "-" else setting.parse(default_text.strip('"'))
    allowed = None
    if bounds:
        low, high = bounds[0].split("..")
        allowed = between(json.loads(low), json.loads(high)) if high else at_least(json.loads(low))
    return replace(setting, default=default, allowed=allowed)


SETTINGS = tuple(
    _declare(line, reason) for reason, block in _GROUPS.items() for line in block.splitlines() if line.strip()
)
