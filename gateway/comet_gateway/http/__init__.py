"""HTTP around the routes: middleware, authentication, bodies, errors, limits, and uvicorn's protocols."""
