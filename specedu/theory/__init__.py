"""The book's mathematics, importable: the reference, the exact law, rates, cost and hardware."""
