"""Devices that may join: who is enrolled, and what is known of each."""
