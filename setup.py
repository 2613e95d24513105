"""Builds the noise extension; everything else is in pyproject.toml.

The extension is optional: without a C compiler the package installs all the same and uses NumPy,
with the same results.
"""

import sys

from setuptools import Extension, setup

SOURCES = ["aes.c", "dawson.c", "draws.c", "module.c", "normals.c", "release.c", "squares.c"]
FLAGS = [
    "-std=c11",
    "-O3",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
]  # contraction changes results

kernels = Extension(
    "dpvd.native._kernels",
    [f"src/dpvd/native/{name}" for name in SOURCES],
    depends=["src/dpvd/native/kernels.h"],
    extra_compile_args=["/O2"] if sys.platform == "win32" else FLAGS,
    py_limited_api=True,
    optional=True,
)
if (
    sys.platform == "linux"
):  # elsewhere compilers come without OpenMP, and one thread draws the noise
    kernels.extra_compile_args.append("-fopenmp")
    kernels.extra_link_args.append("-fopenmp")

setup(ext_modules=[kernels], options={"bdist_wheel": {"py_limited_api": "cp311"}})
