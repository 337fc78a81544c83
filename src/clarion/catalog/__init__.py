"""The catalog: subscriptions and the endpoints they are pushed to, in a relational database.

`access` is what brokers use: every question goes to one thread, never to the event loop, and what it needs (SQLAlchemy,
Alembic, psycopg) is imported there, when there is something to ask. `database` speaks to SQLite, a file in the data
directory, or to PostgreSQL, the same way; `migrations` bring older catalogs up to date. Every change raises the
catalog's revision, by which brokers see what is new. This room knows no brokers, groups or messages: topic, broker and
group settings are in the coordination store, and how far a subscription has read is in the log.
"""
