"""Both implementations have to pass the same tests."""

import pytest

from dpvd.native import implementation_in_use


@pytest.fixture(params=["compiled", "pure"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the implementation that draws during the test."""
    monkeypatch.setenv("DPVD_NATIVE", "1" if request.param == "compiled" else "0")
    if implementation_in_use().compiled != (request.param == "compiled"):
        pytest.skip("the compiled kernels were not built")
    return request.param
