"""Gate made of other gates' scores by a logistic regression."""
