"""Records of shared groups, leased without a session."""

from __future__ import annotations

from fastapi import APIRouter

router = APIRouter(prefix="/v1")
