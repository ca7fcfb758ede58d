"""How alembic runs the steps: on the connection, and in the transaction, that `database.migrate` gives."""

from __future__ import annotations

from alembic import context

from gateway.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
)
with context.begin_transaction():
    context.run_migrations()
