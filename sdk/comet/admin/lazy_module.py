"""A module that is imported when one of its names is first used, so that a call does not wait for what others need."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any


class LazyModule(ModuleType):
    """Stands for a module, in annotations too. Type checkers see the module itself, by an import for them alone.

    >>> results = LazyModule("comet.admin.results")
    >>> results.GroupLag is comet.GroupLag
    True
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)
