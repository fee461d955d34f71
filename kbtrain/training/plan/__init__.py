"""What a training would need, told before it starts: parameters, memory a device, steps, operations and time."""
