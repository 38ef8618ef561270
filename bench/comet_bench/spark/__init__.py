"""`comet bench spark`: reads of topics, and the latency of a stream."""
