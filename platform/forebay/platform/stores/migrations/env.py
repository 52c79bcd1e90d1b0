"""Alembic's entry point. `stores.schema.migrate` passes the connection and owns the transaction."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], target_metadata=None)
context.run_migrations()
