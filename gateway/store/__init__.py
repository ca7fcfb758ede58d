"""What outlives a process, in the state directory: stored measurements, artifacts, the database.

profiles    stored measurements of variants, `profiles.json`
database    `tidegate.db`: opening it, and bringing its schema up to date
tables      that schema; migrations/ holds the steps to it
"""
