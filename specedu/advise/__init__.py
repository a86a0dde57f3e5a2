"""Should this pair speculate, with how many drafts, and up to which load? Measured, then said.

``pair`` measures a model with its draft on this machine; ``page`` reads what a running vLLM or
SGLang says of itself. Users' first complaint about speculation is that it is slower than without:
this finds out before it is switched on, or why it is.
"""
