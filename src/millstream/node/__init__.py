"""One node of a cluster: server, storage, consensus, metadata, replicas, and the services on top of them."""
