"""Process settings for gRPC, made before its import; see docs/performance.md.

Four things, the first two measured on the product's own paths, for large messages:

- gRPC's event engine hands every message from its own threads to the completion queue's thread. Without it that
  thread polls the sockets itself: one hop fewer each way, about a third off the latency of a small message.
- glibc gives memory above its trim threshold back to the kernel at every chance, so that each large message faults
  its pages in again. Allocating and freeing one large block raises the thresholds for good: bulk transfers gain
  about a half. The block is never touched, so it costs address space for a moment and nothing else.
- gRPC has handlers that run when the process forks. They print to stderr, and sometimes kill a child that is
  to become another program, such as the Java that pyspark starts. Connections of asyncio do not
  outlive a fork anyway.
- gRPC writes a line to stderr for each TLS handshake that fails, so that a stranger could fill the disk of the logs.
"""

from __future__ import annotations

import os
from typing import Final

_WITHOUT_EVENT_ENGINE: Final = "-event_engine_client,-event_engine_listener"
_BLOCK_BYTES: Final = 31 << 20  # just below the 32 MiB at which glibc stops adapting


def tune_process() -> None:
    """Tunes the process; call it before the first `import grpc`. The user's environment variables take precedence."""
    os.environ.setdefault("GRPC_EXPERIMENTS", _WITHOUT_EVENT_ENGINE)
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    bytes(_BLOCK_BYTES)
