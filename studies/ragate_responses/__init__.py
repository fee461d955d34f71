"""Responses of a dialogue model with and without knowledge, and RAGate's tables and figures of them."""
