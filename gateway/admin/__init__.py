"""The operator API.

plane      what it asks of control, and the checks that all bodies share
app        the application: one error form, what is not served
running    the configuration, endpoints and models as they are
routing    dry runs and decision records
measuring  measuring variants that only the gateway itself reaches
models     releases: upload, push, compatibility
devices    tokens, enrolled devices, drain and revocation
updates    drift, and what is done about it
"""
