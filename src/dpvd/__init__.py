"""Differentially private training of Bayesian neural networks by variational dropout."""

__version__ = "0.1.0"
