"""Sockets: framing, pipelining, back-pressure, TLS. It never looks inside a request beyond its length."""
