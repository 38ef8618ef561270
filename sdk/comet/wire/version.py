"""The version of this software, which clients and brokers tell each other."""

VERSION = "0.1.0"
