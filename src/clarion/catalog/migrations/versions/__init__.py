"""One file for each version, in their order."""
