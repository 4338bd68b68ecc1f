"""Attacks on the running system: real nodes with their stores and their wire, in this process."""
