"""Which transactions ListTransactions is to name: by state, producer id, how long they have been open, and id."""

from collections.abc import Collection
from dataclasses import dataclass

from millstream.node.coordination.core.expression import Expression
from millstream.node.transactions.core.transaction import Transaction, TransactionState

STATES_BY_LABEL = {state.label: state for state in TransactionState}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionFilter:
    """Nothing said of a thing means that all pass."""

    states: Collection[TransactionState] | None = None
    producer_ids: Collection[int] = ()
    longer_than_ms: int = -1
    pattern: Expression | None = None

    def matches(self, transaction: Transaction, now_ms: int) -> bool:
        if self.states is not None and transaction.state not in self.states:
            return False
        if self.producer_ids and transaction.producer_id not in self.producer_ids:
            return False
        if self.longer_than_ms >= 0 and now_ms - transaction.start_ms <= self.longer_than_ms:
            return False
        return self.pattern is None or self.pattern.is_match(transaction.transactional_id)
