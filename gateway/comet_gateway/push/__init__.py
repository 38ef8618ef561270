"""Push to WebSockets and event streams. `hub` follows each topic once for all its subscribers."""
