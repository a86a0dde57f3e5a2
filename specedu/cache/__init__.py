"""The paged cache: who owns which block, and what lies in a slot."""
