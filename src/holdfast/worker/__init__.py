"""The worker: claims jobs, runs them and settles their outcomes."""
