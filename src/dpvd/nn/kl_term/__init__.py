"""The KL term of the objective: the distance of a layer's weights from their prior.

``divergences`` is the KL divergence as a function of log α, ``priors`` holds one class for each
prior, ``gradient`` the gradient of the term for a whole model.
"""
