"""This broker in its cluster: registration, cluster view, controller, guard of the metadata store."""
