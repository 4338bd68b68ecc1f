"""Simulation: the readable loop, the compiled one, and the trace they leave."""
