"""Plan of a training before it starts: parameters, memory per device, steps, operations and time."""
