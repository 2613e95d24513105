"""Multi-head attention with noise on its weights.

``core`` is torch's attention with its linear maps left open, ``layers`` what the user builds.
"""
