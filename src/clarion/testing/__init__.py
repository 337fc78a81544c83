"""A real broker inside a test's process, with faults on request."""
