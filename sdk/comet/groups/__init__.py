"""Consumer groups: membership, assignment, commits."""
