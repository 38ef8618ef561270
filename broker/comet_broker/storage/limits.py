"""The limits of the log, with the relations between them asserted."""

from __future__ import annotations

from typing import Final

from comet_broker import limits

# With less free space nothing is appended: the rest is for deleting, checkpoints and the metadata store.
FREE_BYTES_MIN: Final = 8 * limits.MIB

# Space is reserved ahead of the writes in growing steps, so that small topics stay small.
RESERVE_FROM_BYTES: Final = 1 * limits.MIB
RESERVE_AHEAD_BYTES_MAX: Final = 16 * limits.MIB
# The bytes that are appended between two checks of the free space.
ROOM_STEP_BYTES: Final = 1 * limits.MIB

# Sealed segments of one log whose file stays open and whose index stays in memory after reading.
WARM_SEGMENTS_MAX: Final = 4
# Time without a write after which the file of the active segment is closed.
REST_S: Final = 60

# Damaged ranges of one log that readers found and the log remembers.
LOST_RANGES_MAX: Final = 1000

# Committed records that are set aside: files in one partition's folder, and bytes that are copied at once.
ASIDE_FILES_MAX: Final = 16
ASIDE_CHUNK_BYTES: Final = 1 * limits.MIB

assert ROOM_STEP_BYTES <= RESERVE_FROM_BYTES <= RESERVE_AHEAD_BYTES_MAX
assert ROOM_STEP_BYTES < FREE_BYTES_MIN
