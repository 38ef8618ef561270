from __future__ import annotations
from comet.cli._guard import guarded
@guarded
def consume() -> None:
    """x"""
