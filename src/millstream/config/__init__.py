"""Settings: declared once, under Kafka's names; read from files, checked, described."""
