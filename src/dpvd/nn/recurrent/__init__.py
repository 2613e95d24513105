"""Recurrent layers with noise on their weights.

From the inside out: ``cells`` is one step of a recurrence, ``scan`` a whole sequence of steps with
its backward pass, ``unroll`` all layers and directions of a torch layer, ``layers`` what the user
builds.
"""
