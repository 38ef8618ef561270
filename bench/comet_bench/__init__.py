"""`comet bench`: Comet's speed on this machine, with the machine's own limits measured beside it.

    the command ──starts──► a broker (comet broker, fresh folder)
               ──starts──► workers  (python -m comet_bench.worker NAME): producer, consumer, limits

Every part is a new process that exchanges JSON lines with the command. Benchmarks report times and assert none.
The figures are explained in docs/benchmarks.md.
"""
