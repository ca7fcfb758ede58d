"""`python -m gateway.cli.schema`: print the configuration's JSON Schema, as deploy/ holds it."""

from __future__ import annotations

import json
import sys

from gateway.cli.common import BACKENDS
from gateway.core.config.load import kinds_in
from gateway.core.config.schema import schema


def text() -> str:
    """The schema of every kind installed, ending in a newline."""
    return json.dumps(schema(kinds_in(BACKENDS)), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
