"""The testing kit: whole clusters in one thread, on virtual time. Users reach it as comet.testing.

cluster          what a test does to a cluster; world, its parts
request_faults   requests that are refused, or observed
advance          lets time pass, and skips what nothing is due in
chaos            the standard faults, at random moments
app_process      a user's App as a process
plugin           the pytest plugin
virtual_time     the event loop of a test
simulation       the simulated world: loop, clock, network, disks, metadata store, hosts
"""
