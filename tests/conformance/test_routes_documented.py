"""The limits of routes are those that the documentation tells."""

from __future__ import annotations

from tests.conformance.routes import LIMITS
from tests.conformance.stage import ROUTES
from tests.support.processes import ROOT

NAMES = dict(zip(ROUTES, ("Triton", "pools", "devices"), strict=True))


def test_the_table_has_what_the_suite_leaves_out():
    text = (ROOT / "docs" / "protocol.md").read_text().partition("## Whatever the route\n")[2]
    rows = [row.strip("|").split("|") for row in text.partition("\n## ")[0].splitlines() if row[:1] == "|"]
    told = {what.strip(): (where.strip(), there.strip()) for what, where, there in rows[2:]}
    assert told == {
        what: (", ".join(NAMES[route] for route in limit.routes), limit.here)
        for what, limit in LIMITS.items()
    }
