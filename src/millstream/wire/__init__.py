"""A blocking Kafka client over the protocol room: connections, cluster metadata, raw fetch and produce, transactions."""
