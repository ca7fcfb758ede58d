"""The database's schema as this version knows it. `migrations/versions` holds the steps to it.

Wall times are seconds since the epoch. Secrets are stored as their SHA-256 alone.
"""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Boolean, Column, Double, Integer, LargeBinary, MetaData, Table, Text

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

# A release never changes but for its order, stage and figures.
releases = Table(
    "releases",
    metadata,
    Column("model", Text, primary_key=True),
    Column("version", Text, primary_key=True),
    Column("document", JSON, nullable=False),
)

# What serves: the version that places run unless a rollout has moved them.
standing = Table(
    "standing",
    metadata,
    Column("model", Text, primary_key=True),
    Column("version", Text, nullable=False),
)

# State machines, whole, as they were after their last step. `open`: there is more to do.
rollouts = Table(
    "rollouts",
    metadata,
    Column("id", Text, primary_key=True),
    Column("model", Text, nullable=False),
    Column("open", Boolean, nullable=False),
    Column("changed_at", Double, nullable=False),
    Column("document", JSON, nullable=False),
)

updates = Table(
    "updates",
    metadata,
    Column("id", Text, primary_key=True),
    Column("model", Text, nullable=False),
    Column("open", Boolean, nullable=False),
    Column("changed_at", Double, nullable=False),
    Column("document", JSON, nullable=False),
)

# How far the records of a device's spool, or of a replica, are counted: each number once.
report_sources = Table(
    "report_sources",
    metadata,
    Column("source", Text, primary_key=True),
    Column("spool", Text, primary_key=True),
    Column("counted", BigInteger, nullable=False),
    # Records that the source had no room for.
    Column("lost", BigInteger, nullable=False),
    Column("changed_at", Double, nullable=False),
)

# Evidence by version, site and time: `bucket` is when it began, in whole seconds since the epoch; -1 holds
# what came without a known age.
evidence = Table(
    "evidence",
    metadata,
    Column("model", Text, primary_key=True),
    Column("version", Text, primary_key=True),
    Column("site", Text, primary_key=True),
    Column("bucket", BigInteger, primary_key=True),
    Column("document", JSON, nullable=False),
)

# Requests to train on. `id` is the SHA-256 of the inputs, in hex.
samples = Table(
    "samples",
    metadata,
    Column("model", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("site", Text, nullable=False),
    # edgewire.allowed, as text: where it may go.
    Column("places", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("confidence", Double, nullable=False),
    Column("taken_at", Double, nullable=False),
    # By the teacher, one a row of the request; null while nobody has told. Labels of the operator's file
    # stay in the file.
    Column("labels", JSON),
    Column("rows", Integer, nullable=False),
    Column("request", LargeBinary, nullable=False),
)
