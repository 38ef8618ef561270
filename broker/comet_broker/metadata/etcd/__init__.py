"""The metadata store of a cluster: an etcd that the brokers share.

store   EtcdStore, the port's methods
calls   the ways to the members: deadlines, failover, passwords, what each error means
watch   a stream of changes that outlives compaction, restarts and silence
reconcile  pure: whether a watch has seen all that a listing shows
wire    pure: the port's keys and values in etcd's words, and back
"""
