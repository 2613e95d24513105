"""Features of images that no data was needed for: modules without parameters, free of privacy."""

from dpvd.features.extractor import FeatureExtractor, FeatureKind, FeatureSpec, extract
from dpvd.features.gradients import GradientHistograms
from dpvd.features.random_projection import RandomProjection
from dpvd.features.scattering import Scattering
from dpvd.features.shapes import random_shapes
from dpvd.features.whitening import Whitening

__all__ = [
    "FeatureExtractor",
    "FeatureKind",
    "FeatureSpec",
    "GradientHistograms",
    "RandomProjection",
    "Scattering",
    "Whitening",
    "extract",
    "random_shapes",
]
