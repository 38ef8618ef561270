"""The broker's memory: the quota of bytes in flight, and the guard of the process's memory."""
