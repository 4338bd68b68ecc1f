"""The leaderboard: a fixed suite of worlds and policies, its recorded result, ranks and a page."""
