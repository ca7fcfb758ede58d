"""The operator API.

plane      what it asks of control, and the checks that all bodies share
app        the application: one error form, what is not served
running    the configuration, endpoints and models as they are
routing    dry runs and decision records
devices    tokens, enrolled devices, drain and revocation
"""
