"""The KBM paper's tables 1 to 4 and figures 1 to 6, and pipelines beside gates, from stored answers."""
