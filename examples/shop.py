"""A shop that asks its local server what to show: python examples/shop.py URL TOKEN

The server declares what events are worth: --set 'feedback.events={"view": 0.1, "buy": 1.0}'
"""

from __future__ import annotations

import math
import random
import sys
from typing import Any

from fclub import Client
from fclub.client import Event

DIM = 10
AISLES = ["tea", "coffee", "cake"]
AFFORDABLE: dict[str, Any] = {"and": [{"number": "price", "max": 20}, {"not": {"tag": "sold out"}}]}


def features(rng: random.Random) -> list[float]:
    """An article as a unit vector; a real shop would use its own description of it."""
    numbers = [rng.gauss(0.0, 1.0) for _ in range(DIM)]
    length = math.sqrt(sum(v * v for v in numbers))
    return [v / length for v in numbers]


def attributes(rng: random.Random) -> dict[str, Any]:
    """An aisle and a price; one article in ten is sold out."""
    tags = ["sold out"] if rng.random() < 0.1 else []
    price = round(rng.uniform(1.0, 25.0), 2)
    return {"categories": [rng.choice(AISLES)], "tags": tags, "numbers": {"price": price}}


def main(url: str, token: str, visits: int = 100) -> None:
    rng, bought = random.Random(1), 0
    articles = {f"article-{k}": features(rng) for k in range(200)}
    with Client(url, token) as client:
        client.put_items(articles, {key: attributes(rng) for key in articles})
        for _ in range(visits):
            user = f"customer-{rng.randrange(20)}"
            shown = client.recommend_several(user, 5, where=AFFORDABLE, most_per_category=2)
            client.event_batch([Event(one.decision, "view") for one in shown])
            liked = [one for one in shown if articles[one.item][0] > 0.1]
            if liked:  # the first one is bought: its reward grows
                client.event(liked[0].decision, "buy")
            bought += bool(liked)
        print(f"{bought} of {visits} visitors bought one of the five that they were shown")
        print("most popular:", ", ".join(one.item for one in client.popular(3)))
        print("like article-7:", ", ".join(one.item for one in client.similar("article-7", 3)))
        gone = client.forget("customer-16")
        print(
            f"customer-16 is forgotten; {gone.released} of {gone.observations} rewards had left before"
        )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
