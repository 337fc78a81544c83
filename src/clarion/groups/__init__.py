"""The group coordinator: classic groups, KIP-848 groups and committed offsets, as state machines that return (records, replies)."""
