"""Training data and training of the embedded model `copyspec-tiny`."""
