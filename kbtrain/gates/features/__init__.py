"""Gate by features of the question that are known before any model is called."""
