"""What control does of its own accord, with the state it keeps.

signing   the signed metadata about released artifacts
releases  the one that makes and changes releases
"""
