"""CPU time per round of the plain NumPy LinUCB that all times are compared with.

python benchmarks/yardstick.py
"""

from fclub.experiments.bench import microseconds_per_round

if __name__ == "__main__":
    print(f"{microseconds_per_round(20_000):.1f} µs per round")
