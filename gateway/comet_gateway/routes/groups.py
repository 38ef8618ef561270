"""Groups: members, positions, lag."""

from __future__ import annotations

from fastapi import APIRouter

router = APIRouter(prefix="/v1")
