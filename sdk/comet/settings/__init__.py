"""Tables of settings: those of a topic, and those of a server's process."""
