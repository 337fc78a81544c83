"""Small programs that keep the documentation true."""
