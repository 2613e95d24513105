"""What a pruned network is good for: a smaller one, or fewer bytes.

``links`` finds the layers that hand their units on to each other, ``compress`` takes units without
use out of them, ``export`` stores weights as sparse tensors.
"""
