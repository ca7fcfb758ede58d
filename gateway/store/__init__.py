"""What outlives a process, most of it in the state directory.

profiles    stored measurements of variants, `profiles.json`
database    `tidegate.db`: opening it, and bringing its schema up to date
tables      that schema; migrations/ holds the steps to it
artifacts   the model files that the configuration names
blobs       released artifacts and their signed metadata, a folder or a bucket
releases    rows of releases and of what stands
"""
