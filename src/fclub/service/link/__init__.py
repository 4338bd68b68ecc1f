"""Between nodes: numbered frames and receipts, and the wires that carry them."""
