"""Values of the metadata store, which several threads decode."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# New classes each time: what crashed was the first decoding of a class, while another thread decoded one of its fields.
DECODING = """
import sys, threading
from comet_broker.core.cluster import Stored

def decode_at_once(*work):
    barrier = threading.Barrier(len(work))

    def decode(kind, data):
        barrier.wait()
        kind.decode(data)

    threads = [threading.Thread(target=decode, args=one) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

sys.setswitchinterval(1e-6)
for number in range(1_500):
    class Inner(Stored, frozen=True):
        a: int = 0
        b: tuple[int, ...] = ()
        c: dict[str, int] = {}

    class Middle(Stored, frozen=True):
        x: Inner = Inner()
        y: tuple[Inner, ...] = ()
        z: dict[str, Inner] = {}

    class Outer(Stored, frozen=True):
        p: Middle = Middle()
        q: tuple[Middle, ...] = ()

    inner = Inner(1, (2,), {"k": 3})
    middle = Middle(inner, (inner,), {"k": inner})
    outer = Outer(middle, (middle,))
    decode_at_once(*((type(one), one.encode()) for one in (outer, outer, middle, inner)))
print("decoded")
"""


def test_threads_may_decode_a_class_for_the_first_time_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", DECODING], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stdout) == (0, "decoded\n"), done.stderr
