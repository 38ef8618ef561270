"""Share groups: acquire, accept, release, reject."""
