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


def main(url: str, token: str, visits: int = 100) -> None:
    rng, bought = random.Random(1), 0
    articles = {f"article-{k}": features(rng) for k in range(200)}
    with Client(url, token) as client:
        client.put_items(articles)
        for _ in range(visits):
            shown = client.recommend_several(f"customer-{rng.randrange(20)}", count=5)
            buys = {one.decision: float(articles[one.item][0] > 0.1) for one in shown}
            client.feedback_batch(buys)
            bought += max(buys.values()) > 0.0
        print(f"{bought} of {visits} visitors bought some of the five that they were shown")
        gone = client.forget("customer-16")
        print(
            f"customer-16 is forgotten; {gone.released} of {gone.observations} rewards had left before"
        )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
