"""PURE. What an attempt would take, how places compare, in which order they are tried, and the
record of it all.

Latency is measured (`latency`), cost computed (`cost`); `scorers` turn both and the declared quality
into numbers in [0,1]; `score` weighs them, `pick` orders by them.
"""
