"""One scorer per file, found by its `kind`, which is also its key in a policy's `weights`."""
