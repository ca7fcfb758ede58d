"""Work that is not a request: measurements of variants, made directly at their endpoints."""
