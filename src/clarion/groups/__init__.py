"""The group coordinator: classic groups, KIP-848 groups and committed offsets.

State machines that take events and return (records, replies); `coordinator` tells the protocol between them and
their driver. A shard is one partition of `__consumer_offsets` with the groups that hash to it. This room never does
I/O, never reads a clock, and never trusts a member's word about another one.
"""
