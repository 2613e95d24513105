"""Programs that other libraries' environments run on tables: arrays in, probabilities out."""
