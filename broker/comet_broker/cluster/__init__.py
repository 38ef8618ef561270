"""This broker in its cluster: registration, cluster state, controller, guard of the metadata store."""
