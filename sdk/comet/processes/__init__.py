"""Child processes: start, tie to the parent, wait until ready, restart, end in order.

For local clusters, the gateway beside `comet up`, the benchmark, the demo and tests. `import comet` does not import it.

    child            one process over all its starts: log or pipe, readiness, exit code, end
    restart_policy   when an ended process starts again; in which order processes end (pure)
    keeper           restarts children by that policy
    tied             runs in the child: ends it when its parent is gone
    crew             the children of one program, with a folder for logs and temporary files
    program          runs the main function of a program; ends it at a signal, and with one line for an error
    hang_watchdog    kills a process that neither answers nor ends
    signals, ports   stop signals of the parent; reserved ports
    descriptors      the limit of open files of this process
"""
