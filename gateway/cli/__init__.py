"""`tidegate`: one module per command, registered in `main`.

A command's module imports only what its signature needs; everything heavy is imported where it is
used, so that `tidegate --help` stays quick. Results go to stdout, errors to stderr in one line that
says what to do; the exit status is 0, 1 (failed) or 2 (usage or bad input).
"""
