"""Attacks on the running system: real nodes with their stores, joined in process or by a broker."""
