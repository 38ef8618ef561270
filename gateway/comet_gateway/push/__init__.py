"""What stays connected: WebSocket and SSE. `hub` follows topics once for all, the rest is one subscriber's."""
