"""Steps from one schema of the database to the next, run in order when a gateway starts."""
