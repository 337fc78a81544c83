"""What every message looks like in every version that we speak: generated from kio by `make docs`, never edited.

`wire.plan` says how to read them. A test generates them again and compares; kio itself is for tests and this alone.
"""
