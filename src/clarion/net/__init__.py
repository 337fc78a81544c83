"""Sockets: framing, pipelining in order, back-pressure, TLS.

A frame goes to the service as a view that is valid during that call only; the service answers with a reply,
with nothing, or with a promise (`PendingReply`). Replies leave in request order. This room never looks inside a
frame: what the bytes mean is the service's business. Only on the way to another broker does it know what is said:
`channel`, which is imported from its own module.
"""

from clarion.net.connection import Connection
from clarion.net.latencies import Latencies, Quick
from clarion.net.replies import PendingReply, Reply, Service
from clarion.net.server import NetLimits, Server

__all__ = ["Connection", "Latencies", "NetLimits", "PendingReply", "Quick", "Reply", "Server", "Service"]
