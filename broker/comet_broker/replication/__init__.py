"""How the log of a partition gets from its leader to its followers: one stream from each follower to each leader."""
