"""The log of a partition on disk: files, segments, index, recovery. `log` is the way in."""
