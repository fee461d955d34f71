"""Questions from anywhere: one loader per native format, all of them giving :class:`kbtrain.records.Question`."""
