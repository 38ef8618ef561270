"""`comet bench`: Comet's speed on this machine, with the machine's own limits measured beside it.

    the command ──starts──► a broker (python -m comet_broker, fresh folder)
               ──starts──► workers  (python -m comet_bench.worker NAME): producer, consumer, limits

Every part is a process of its own, started afresh, talking to the command in JSON lines. Nothing here asserts
a time: it reports. What each figure means is in docs/benchmarks.md.
"""
