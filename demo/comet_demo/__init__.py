"""The demo: live quotes through Comet, from a provider to a table on the terminal.

    provider ─► feed (process) ─► broker (process) ─► consumer: the table
    model.Quote is the record; launcher starts and ends all processes.

It uses only the public API of `comet`, as any other program would.
"""
