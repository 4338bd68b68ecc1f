"""From traces to numbers, charts, claims, and the report that shows them."""
