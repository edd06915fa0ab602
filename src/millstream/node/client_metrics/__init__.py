"""Client metrics (KIP-714): subscriptions, pushes of clients, their OTLP, and the topic that keeps them."""
