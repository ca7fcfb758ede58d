"""What control makes of reports.

    consent   what of a report may be here, by the privacy classes: asked before anything is kept
    windows   the arithmetic of reports: records to additions, and which of them were counted before
    ingest    takes reports from devices and gateways: each record once, in one transaction
    evidence  what was counted, by version, place and time
    samples   requests to train on, and their labels
    labels    the operator's file of labels

A record is known by its source, spool and number. How far a spool is counted is written in the same
transaction as what its records add, so a report may come any number of times, in any order and in parts.
"""
