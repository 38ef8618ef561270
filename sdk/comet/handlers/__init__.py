"""Handlers of an App: binding, dispatch, delivery guarantees, dead letters."""
