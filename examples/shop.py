"""A shop that asks its local server what to show: python examples/shop.py URL TOKEN"""

from __future__ import annotations

import math
import random
import sys

from fclub import Client

DIM = 10


def features(rng: random.Random) -> list[float]:
    """An article as a unit vector; a real shop would use its own description of it."""
    numbers = [rng.gauss(0.0, 1.0) for _ in range(DIM)]
    length = math.sqrt(sum(v * v for v in numbers))
    return [v / length for v in numbers]


def main(url: str, token: str, visits: int = 200) -> None:
    rng = random.Random(1)
    catalogue = {f"article-{k}": features(rng) for k in range(50)}
    bought = 0
    with Client(url, token) as client:
        for _ in range(visits):
            customer = f"customer-{rng.randrange(20)}"
            on_offer = {name: catalogue[name] for name in rng.sample(sorted(catalogue), 8)}
            shown = client.recommend(customer, on_offer)
            buys = on_offer[shown.item][0] > 0.1
            bought += buys
            client.feedback(shown.decision, 1.0 if buys else 0.0)
    print(f"{bought} of {visits} visitors bought what they were shown")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
