"""The wire: frames, protobuf conversion and transport, shared with the servers."""
