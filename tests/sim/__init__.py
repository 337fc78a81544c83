"""What the tests simulate: a disk that loses power."""
