"""What the cluster agrees on: the port (`store`), the file of a single broker (`embedded`), the etcd that several
share (`etcd`), and memory (`memory`).

store      the port, shaped after etcd v3, and what it asks of every implementation
keyspace   pure: keys, revisions, leases; decides a transaction without touching anything
history    pure: the bounded past that watches read
watches    iterators over the history
leases     deadlines on the clock, one timer on the loop
memory     keyspace + watches + leases: the whole store in memory
embedded   the same, each change made durable first
etcd       a package: the same promises, kept by a server
sqlite     the file below it: layout, checksums, commits
examine    looks a file over before it is trusted; keeps the backup
"""
