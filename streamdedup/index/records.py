"""*Blocking.* The records of the manifest, and the sum that tells whether one was lost or changed.

The sum is that of the checksums of all records, modulo 2^64. So a transaction adds those of the
records that it writes, and subtracts those that it replaces or deletes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamdedup.index.layout import sum_of

_SUM = b"sum"
"""The key of the sum, in the first database. The sum does not count itself."""
_MASK = (1 << 64) - 1


class Records:
    """The records of an LMDB environment, within one transaction.

    Args:
        txn: the transaction.
        databases: the databases by name; the first one holds the sum.
    """

    def __init__(self, txn: Any, databases: Mapping[str, Any]) -> None:
        self._txn, self._databases = txn, databases
        self._home = next(iter(databases.values()))
        self._sum = self._stored_sum()

    def is_complete(self) -> bool:
        """Return whether these are the records that were written; reads all of them."""
        found = 0
        for name, database in self._databases.items():
            for key, value in self._txn.cursor(db=database):
                if database is not self._home or key != _SUM:
                    found += _sum_of_record(name, key, value)
        return found & _MASK == self._sum

    def get(self, name: str, key: bytes) -> bytes | None:
        """Return the value under a key of a database; None if there is none."""
        value: bytes | None = self._txn.get(key, db=self._databases[name])
        return value

    def put(self, name: str, key: bytes, value: bytes) -> None:
        """Write a record, whether there was one or not."""
        self._forget(name, key)
        self._txn.put(key, value, db=self._databases[name])
        self._sum += _sum_of_record(name, key, value)

    def delete(self, name: str, key: bytes) -> None:
        """Delete a record if there is one."""
        self._forget(name, key)
        self._txn.delete(key, db=self._databases[name])

    def first_key(self, name: str) -> bytes | None:
        """Return the first key of a database; None if it is empty."""
        with self._txn.cursor(db=self._databases[name]) as cursor:
            return cursor.key() if cursor.first() else None

    def save(self) -> None:
        """Write the sum; the last step of a transaction that has changed records."""
        self._txn.put(_SUM, (self._sum & _MASK).to_bytes(8, "little"), db=self._home)

    def _forget(self, name: str, key: bytes) -> None:
        old = self.get(name, key)
        if old is not None:
            self._sum -= _sum_of_record(name, key, old)

    def _stored_sum(self) -> int:
        raw = self._txn.get(_SUM, db=self._home)
        return 0 if raw is None else int.from_bytes(raw, "little")


def _sum_of_record(name: str, key: bytes, value: bytes) -> int:
    return sum_of(value, seed=sum_of(name.encode() + b"/" + key))
