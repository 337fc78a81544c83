"""Bad input at the door of a real broker: always an error or a closed connection, never a crash, a hang, a leak, or a
neighbour who notices. `CLARION_FUZZ_SEED` repeats a run; every failure prints its seed."""
