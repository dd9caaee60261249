"""The newest that is known of a few transactions, for the moment until the journal shows it too."""

from collections import OrderedDict

from device.values.transactions import TxnMemory

MAX_RECENT = 64
"""A journal read is behind by one or two messages; the rest is room for a slow disk."""


class RecentTxns:
    """The last `MAX_RECENT` transactions of which something became known."""

    def __init__(self) -> None:
        self._recent: OrderedDict[str, TxnMemory] = OrderedDict()

    def __len__(self) -> int:
        return len(self._recent)

    def __contains__(self, txn_id: object) -> bool:
        return txn_id in self._recent

    def newest(self, txn_id: str, journaled: TxnMemory | None) -> TxnMemory | None:
        """What is known of `txn_id`, where `journaled` is what a read of the journal gave."""
        return self._recent.get(txn_id, journaled)

    def note(self, memory: TxnMemory) -> None:
        """This is the newest about its transaction."""
        self._recent[memory.txn_id] = memory
        self._recent.move_to_end(memory.txn_id)
        if len(self._recent) > MAX_RECENT:
            self._recent.popitem(last=False)
