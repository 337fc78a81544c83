"""What consumers are owed, decided without doing anything: filters, retention by need, push.

Pure: no event loop, no clock, no I/O. Whoever carries it out is in `broker` and `gateway`.
"""
