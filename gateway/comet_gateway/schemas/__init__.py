"""Models of requests and answers (pydantic), also for the OpenAPI. One module for each of `routes`."""
