"""The testing kit: whole clusters in one thread, on virtual time. Users reach it as comet.testing.

    cluster          what a test does to a cluster; world, its parts
    request_faults   requests that are refused, or observed
    chaos            the standard faults, at random moments
    advance          lets time pass, and skips what nothing is due in
    settled          whether everything is at rest
    app_process      a user's App as a process
    plugin           the pytest plugin
    virtual_time     the event loop of a test
    simulation       the simulated world: loop, clock, network, disks, metadata store, hosts

Here `Cluster` is the public one, see comet.testing.
"""
