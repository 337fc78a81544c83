"""Messages by other ways than Kafka's protocol: the HTTP API, and push to webhooks.

Nothing here, nor the libraries it stands on, is imported before it is first needed: a broker without HTTP requests and
push subscriptions starts and idles as if this room were not there.

`door` is all that a broker has of the API until somebody asks for one of its paths: then FastAPI and uvicorn are loaded
in a thread, and the connection is handed to uvicorn's protocol, on the broker's own event loop. A request becomes what
Kafka's protocol would have asked (`brokers`), of this broker or, where another one leads, of that one; so a client that
knows one broker knows the cluster. What the loop gives to HTTP is measured and bounded (`loop_share`): Kafka's clients
come first. The API decides nothing that a broker decides: it reads requests, asks, and writes answers.
"""
