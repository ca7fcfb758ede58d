"""The database's schema as this version knows it. `migrations/versions` holds the steps to it.

Wall times are seconds since the epoch. Secrets are stored as their SHA-256 alone.
"""

from __future__ import annotations

from sqlalchemy import JSON, Boolean, Column, Double, LargeBinary, MetaData, Table, Text

metadata = MetaData(
    naming_convention={"pk": "pk_%(table_name)s", "uq": "uq_%(table_name)s_%(column_0_name)s"}
)

devices = Table(
    "devices",
    metadata,
    Column("name", Text, primary_key=True),
    Column("site", Text, nullable=False),
    Column("labels", JSON, nullable=False),
    Column("credential_sha256", LargeBinary, nullable=False, unique=True),
    Column("drained", Boolean, nullable=False),
    Column("revoked", Boolean, nullable=False),
)

enrolment_tokens = Table(
    "enrolment_tokens",
    metadata,
    Column("token_sha256", LargeBinary, primary_key=True),
    Column("site", Text, nullable=False),
    Column("labels", JSON, nullable=False),
    # The only name that it can be redeemed for; null where the device chooses.
    Column("device", Text),
    Column("expires_at", Double, nullable=False),
    # Who redeemed it and with which credential; null while nobody has.
    Column("redeemed_by", Text),
    Column("credential_sha256", LargeBinary, unique=True),
)
