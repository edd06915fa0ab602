"""Bytes and identifiers, without input or output: the model, records and batches, messages of the protocol."""
