"""PURE. How long, how often and how many at a time: deadlines, retries and their budget."""
