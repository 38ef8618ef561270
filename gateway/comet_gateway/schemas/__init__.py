"""What requests and answers look like: pydantic models, which are the OpenAPI too. One module for each of `routes`."""
