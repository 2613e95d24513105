"""Benchmarks: what privacy costs, against ordinary training and against other libraries."""
