"""What Alembic runs: on the connection, and in the transaction, of whoever opened the catalog."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
