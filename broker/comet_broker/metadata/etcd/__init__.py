"""The metadata store of a cluster: an etcd that the brokers share.

store   EtcdStore, the port's methods
calls   calls to the members: deadlines, failover, passwords, translation of errors
watch   a stream of changes, with checks for silence and lost changes
reconcile  pure: compares the changes that a watch has seen with a listing
wire    pure: the port's keys and values as etcd's messages, and back
"""
