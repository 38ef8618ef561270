"""The testing kit: whole clusters in one thread, on virtual time. Users reach it as comet.testing.

simulation     the world of a simulated cluster: loop, clock, network, disks, metadata store, hosts
"""
