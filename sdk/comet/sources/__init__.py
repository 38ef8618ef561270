"""Sources of events outside of Comet, for programs that produce them: files at a pace, WebSocket feeds."""
