"""From logits to the law that a row is verified against."""
