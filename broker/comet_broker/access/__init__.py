"""Access control: what each client may do, by the rules of the cluster."""
