"""Search in records: the language of conditions on JSON values, and filters; of the command line and the gateway."""
