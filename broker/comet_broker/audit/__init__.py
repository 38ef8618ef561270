"""The audit log: refused calls, denials, admin acts and first uses, as lines of JSON and in a topic."""
