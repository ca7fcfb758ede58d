"""Devices and the tokens that enrol them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "devices",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("site", sa.Text, nullable=False),
        sa.Column("labels", sa.JSON, nullable=False),
        sa.Column("credential_sha256", sa.LargeBinary, nullable=False),
        sa.Column("drained", sa.Boolean, nullable=False),
        sa.Column("revoked", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_devices"),
        sa.UniqueConstraint("credential_sha256", name="uq_devices_credential_sha256"),
    )
    op.create_table(
        "enrolment_tokens",
        sa.Column("token_sha256", sa.LargeBinary, nullable=False),
        sa.Column("site", sa.Text, nullable=False),
        sa.Column("labels", sa.JSON, nullable=False),
        sa.Column("device", sa.Text),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.Column("redeemed_by", sa.Text),
        sa.Column("credential_sha256", sa.LargeBinary),
        sa.PrimaryKeyConstraint("token_sha256", name="pk_enrolment_tokens"),
        sa.UniqueConstraint("credential_sha256", name="uq_enrolment_tokens_credential_sha256"),
    )
