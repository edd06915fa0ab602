"""TODO: protobuf."""
