"""One request, top to bottom: options, snapshot, decision, attempts, record."""
