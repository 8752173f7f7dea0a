"""The C part, against the stable ABI: one wheel serves Python 3.11 and all later ones. Everything else is in
pyproject.toml.

`optional`: without a C compiler the package is installed without its C part, and retrysafe goes on in Python.
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "retrysafe_speedups._speedups",
            ["c/_speedups.c", "c/canonical_json.c"],
            depends=["c/canonical_json.h"],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
