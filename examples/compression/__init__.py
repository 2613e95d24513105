"""How far sparse variational dropout compresses the LeNets on MNIST."""
