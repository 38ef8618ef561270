"""The world of a simulated cluster.

    loop       virtual time; nodes, which are processes that can be paused and killed
    network    addresses, links of frames (link) and of bytes (wire), partitions
    disk       files of one process over the disk of its host
    store      the metadata store as a broker reaches it
    host       a machine with a broker: start, drain, kill, power cut
    worker     a broker's worker threads; clock, its clocks

Brokers and clients are the real ones; everything below them is in memory.
"""
