"""Clarion's tests: one folder per room, and `clients`, `kafka_tools`, `traps` for what only a whole broker can show."""
