"""A table of the cluster that is one value in the metadata store, changed by compare-and-swap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

import msgspec

from comet.errors import InvalidArgument, Timeout, Unavailable
from comet_broker.cluster.view import ClusterView
from comet_broker.core.cluster import Stored, Versioned
from comet_broker.metadata.store import Compare, MetadataStore, Put, StoreUnavailable

SWAP_ATTEMPTS_MAX: Final = 16

T = TypeVar("T", bound=Stored)


class StoredTable(Generic[T]):
    """`what` names it for people, such as "rules"."""

    def __init__(self, key: str, kind: type[T], what: str, *, store: MetadataStore, view: ClusterView) -> None:
        self._key = key
        self._kind = kind
        self._what = what
        self._store = store
        self._view = view

    def decoded(self, found: Versioned[bytes] | None) -> T:
        """The table as the view has it. Raises InvalidArgument."""
        return self._decoded(None if found is None else found.value)

    async def change(self, change: Callable[[T], T]) -> tuple[T, T]:
        """Reads the table, changes it and writes it back; retries if another change came first. Returns the table
        before and after, the same one if `change` returns it."""
        for _ in range(SWAP_ATTEMPTS_MAX):
            try:
                item = await self._store.get(self._key)
            except StoreUnavailable as error:
                raise Unavailable(f"the metadata store did not answer: {error}") from error
            before = self._decoded(None if item is None else item.value)
            after = change(before)
            if after is before:
                return before, after
            compare = Compare(self._key, 0 if item is None else item.mod_revision)
            try:
                result = await self._store.transact([compare], [Put(self._key, after.encode())])
            except StoreUnavailable as error:
                text = f"the metadata store did not answer; the change may or may not be made: {error}"
                raise Timeout(text) from error
            if result.applied:
                await self._view.applied.wait(result.revision)
                return before, after
        raise Unavailable(f"the {self._what} were changed concurrently {SWAP_ATTEMPTS_MAX} times; try again")

    def _decoded(self, value: bytes | None) -> T:
        try:
            return self._kind() if value is None else self._kind.decode(value)
        except msgspec.DecodeError as error:
            raise InvalidArgument(
                f"the stored {self._what} cannot be read: {error}; a newer version may have written them"
            ) from error
