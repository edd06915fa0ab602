"""What a decided transaction tells the partitions it wrote to, and who writes in one."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """A producer as its batches name it; a greater epoch fences the smaller ones."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Marker:
    """The end of a transaction: its producer, the outcome, and the coordinator that decided it."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    committed: bool
    transaction_version: int
