"""Privacy: noise sources, mechanisms, calibration, ledger, audit."""
