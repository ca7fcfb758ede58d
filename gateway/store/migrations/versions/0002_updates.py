"""Releases, rollouts, updates, and what is counted and kept for them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "releases",
        sa.Column("model", sa.Text, primary_key=True),
        sa.Column("version", sa.Text, primary_key=True),
        sa.Column("document", sa.JSON, nullable=False),
    )
    op.create_table(
        "standing",
        sa.Column("model", sa.Text, primary_key=True),
        sa.Column("version", sa.Text, nullable=False),
    )
    for name in ("rollouts", "updates"):
        op.create_table(
            name,
            sa.Column("id", sa.Text, primary_key=True),
            sa.Column("model", sa.Text, nullable=False),
            sa.Column("open", sa.Boolean, nullable=False),
            sa.Column("changed_at", sa.Double, nullable=False),
            sa.Column("document", sa.JSON, nullable=False),
        )
    op.create_table(
        "report_sources",
        sa.Column("source", sa.Text, primary_key=True),
        sa.Column("spool", sa.Text, primary_key=True),
        sa.Column("counted", sa.BigInteger, nullable=False),
        sa.Column("lost", sa.BigInteger, nullable=False),
        sa.Column("changed_at", sa.Double, nullable=False),
    )
    op.create_table(
        "evidence",
        sa.Column("model", sa.Text, primary_key=True),
        sa.Column("version", sa.Text, primary_key=True),
        sa.Column("site", sa.Text, primary_key=True),
        sa.Column("bucket", sa.BigInteger, primary_key=True),
        sa.Column("document", sa.JSON, nullable=False),
    )
    op.create_table(
        "samples",
        sa.Column("model", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("site", sa.Text, nullable=False),
        sa.Column("places", sa.Text, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("confidence", sa.Double, nullable=False),
        sa.Column("taken_at", sa.Double, nullable=False),
        sa.Column("labels", sa.JSON),
        sa.Column("rows", sa.Integer, nullable=False),
        sa.Column("request", sa.LargeBinary, nullable=False),
    )
