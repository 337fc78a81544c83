"""A real broker process is killed, frozen and stopped in the middle of load, and keeps every acknowledged message."""
