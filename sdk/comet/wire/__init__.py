"""The wire format: frames, protobuf conversion and transport, shared with the servers."""
