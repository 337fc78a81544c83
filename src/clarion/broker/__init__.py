"""Serving requests: dispatch, one module per API, requests that wait, the driver of the group coordinator.

`Broker` is the state that handlers see, `BrokerServer` its life from start to stop. Handlers decide per item and never
let one client's mistake reach another. This room never touches files or sockets itself.
"""
