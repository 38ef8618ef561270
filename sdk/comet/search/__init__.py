"""Search in records: texts that keys, values and headers contain, and a filter; of the command line and the gateway."""
