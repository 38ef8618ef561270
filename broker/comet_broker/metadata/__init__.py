"""The metadata store: the port (`store`), a single broker's file (`embedded`), a shared etcd (`etcd`), and memory.

store      the port, shaped after etcd v3, and its requirements for every implementation
keyspace   pure: keys, revisions, leases; decides transactions in drafts
history    pure: the bounded past that watches read
watches    iterators over the history
leases     deadlines on the clock, one timer on the loop
memory     keyspace + watches + leases: the whole store in memory
embedded   the same, each change made durable first
etcd       a package: the same guarantees, from a server
sqlite     the file of `embedded`: layout, checksums, commits
examine    checks a file before it is trusted; keeps the backup
"""
