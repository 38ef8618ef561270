"""The heap of a broker's process, shared by its threads."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from comet_broker.system import _mallopt

needs_glibc = pytest.mark.skipif(_mallopt is None, reason="glibc alone has a heap for each thread")

# The threads exist at the same time, since glibc gives a heap of a thread that has ended to the next one.
PROGRAM = """
import ctypes, sys, threading
from comet_broker.system import share_one_heap
if "shared" in sys.argv:
    share_one_heap()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
all_here = threading.Barrier(4)
def allocate():
    all_here.wait()
    assert libc.malloc(ctypes.c_size_t(1000))
    all_here.wait()
threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc.fopen.restype = ctypes.c_void_p
output = ctypes.c_void_p(libc.fopen(b"/dev/stdout", b"w"))
assert not libc.malloc_info(0, output)
libc.fflush(output)
"""


def heaps(*arguments: str, **environment: str) -> int:
    kept = {name: value for name, value in os.environ.items() if name not in {"MALLOC_ARENA_MAX", "GLIBC_TUNABLES"}}
    command = [sys.executable, "-c", PROGRAM, *arguments]
    answer = subprocess.run(command, env=kept | environment, capture_output=True, text=True, check=True)
    return answer.stdout.count("<heap nr=")


@needs_glibc
def test_threads_share_one_heap() -> None:
    assert heaps() > 1
    assert heaps("shared") == 1


@needs_glibc
def test_the_number_of_heaps_that_the_environment_names_stays() -> None:
    assert heaps("shared", MALLOC_ARENA_MAX="3") > 1
