"""Every setting, declared once, under Kafka's own name."""
