"""Access keys: by which clients say who they are, where they present no certificates.

    id              principal        SHA-256       expires
    3f9a51c07d42    client:billing   c0ffee…       never

Brokers store digests alone. A principal has two keys at most: the second is to replace the first. Pure: brokers store
the table as one value, and follow it.
"""

from __future__ import annotations

from typing import Final, Self

import msgspec

from comet.errors import InvalidArgument, LimitExceeded
from comet.records.expiry import has_expired
from comet_broker.core.cluster import Stored
from comet_broker.core.rules import check_principal

KEYS_PER_PRINCIPAL_MAX: Final = 2
TABLE_BYTES_MAX: Final = 1 << 20  # as it is stored: about 5,000 keys


class AccessKey(Stored, frozen=True, array_like=True):
    """What brokers know of one key."""

    id: str
    principal: str
    sha256: str  # of its text, in hex
    author: str = ""  # the principal that created it; empty: it stands in a file
    created_us: int = 0
    expires_us: int = 0  # 0: never

    def has_expired(self, now_us: int) -> bool:
        return has_expired(self.expires_us, now_us)


class AccessKeyTable(Stored, frozen=True):
    """All keys, in the order in which they were created. One value in the store."""

    keys: tuple[AccessKey, ...] = ()

    def get(self, key_id: str) -> AccessKey | None:
        return next((one for one in self.keys if one.id == key_id), None)

    def with_key(self, key: AccessKey, now_us: int) -> Self:
        """The table with the key, and without the expired ones of its principal; this one if it has the key already.
        Raises InvalidArgument, LimitExceeded."""
        check_principal(key.principal)
        known = self.get(key.id)
        if known is not None:
            if (known.principal, known.sha256) != (key.principal, key.sha256):
                raise InvalidArgument(f"another key has the id {key.id}: make a new key")
            return self
        rest = [one for one in self.keys if one.principal != key.principal or not one.has_expired(now_us)]
        others = [one.id for one in rest if one.principal == key.principal]
        if len(others) >= KEYS_PER_PRINCIPAL_MAX:
            raise InvalidArgument(
                f"{key.principal} has the keys {' and '.join(others)}: revoke the one that is not used any more",
                details={"hint": f"comet key revoke {others[0]}"},
            )
        table = msgspec.structs.replace(self, keys=(*rest, key))
        size = len(table.encode())
        if size > TABLE_BYTES_MAX:
            raise LimitExceeded(
                f"{len(table.keys)} access keys take {size} bytes, and at most {TABLE_BYTES_MAX} are stored; "
                "revoke some that are not used any more"
            )
        return table

    def without_key(self, key_id: str) -> Self:
        """The table without the key; this one if it lacks it."""
        rest = tuple(one for one in self.keys if one.id != key_id)
        return self if len(rest) == len(self.keys) else msgspec.structs.replace(self, keys=rest)
