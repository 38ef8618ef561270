"""`comet bench gateway`: what the gateway delivers and takes, beside bare servers."""
