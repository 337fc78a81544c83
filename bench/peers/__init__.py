"""The servers under test: one context manager per peer, each a process of its own on 127.0.0.1, ended by its pid."""

from bench.peers.process import PeerUnavailable, ServerProcess

__all__ = ["PeerUnavailable", "ServerProcess"]
