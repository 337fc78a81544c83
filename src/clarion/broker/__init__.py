"""Serving requests: dispatch, one module per API, waiting requests."""
