"""The gate ``draft``: the first tokens of the greedy answer and their uncertainty; no labels, no training."""
