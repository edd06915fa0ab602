"""One module per family of Kafka APIs. A handler decodes nothing and knows no socket."""
