"""PURE. Whether what a model is asked is still what it was made for.

    _interface  what a detector is: one file here with a class that has a `kind`, found by discovery
    monitor     one model's watch over time: minimum samples, hysteresis, quiet after an update

A detector compares histograms and knows no time; the monitor asks it and decides what that means.
"""
