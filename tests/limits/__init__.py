"""What a broker does when something runs out: descriptors, connections, disk space, a reader's patience."""
