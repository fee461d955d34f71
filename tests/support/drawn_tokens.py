"""The tokens that a sampler draws."""

from kbtrain.llm.sampler.observer import Observer


class DrawnTokens(Observer):
    """``tokens`` of each answer, and why it ended (``finish``), by question and index."""

    def __init__(self):
        self.tokens, self.finish = {}, {}

    def done(self, row):
        self.tokens[row.prompt.question_id, row.index] = row.tokens
        self.finish[row.prompt.question_id, row.index] = row.finish
