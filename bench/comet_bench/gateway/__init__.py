"""`comet bench gateway`: the gateway's throughput and latency, beside bare servers."""
