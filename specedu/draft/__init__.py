"""Drafts: cheap guesses at the next tokens, made by a Proposer and never trusted."""
