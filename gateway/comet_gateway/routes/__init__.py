"""The routes, one module for each kind of resource. Each has a `router`."""
