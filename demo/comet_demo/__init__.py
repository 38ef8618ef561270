"""The demo: live quotes through Comet, from a provider to a table on the terminal.

    provider ─► feed (process) ─► broker (process) ─► consumer: the table
    model.Quote is what travels; launcher starts and ends it all.

It uses nothing but the public API of `comet`, as any program outside would.
"""
