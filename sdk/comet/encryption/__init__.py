"""End-to-end encryption: producers encrypt values, consumers decrypt them, and brokers never see a key."""
