"""The HTTP services: who may ask, what is asked and answered, and the pages."""
