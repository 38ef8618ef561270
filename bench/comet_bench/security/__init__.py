"""`comet bench security`: what TLS, access keys and rules cost."""
