"""Gates of the answering model as it is: no labels, no training; a folder names the model and the signal."""
