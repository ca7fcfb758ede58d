"""The nouns that every room shares: places, requests, calls, decisions, errors, ports, configuration.

Nothing here does I/O or asks for the time. Instants are seconds of a monotonic clock unless a
name says `wall`; durations end in `_s` or `_ms`; sizes in `_bytes`; money is in `config.currency`.
"""
