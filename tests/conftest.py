"""Options and fixtures for all tests."""

import importlib.util
import pathlib

import pytest

HAS_TORCH = importlib.util.find_spec("torch") is not None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-torch",
        action="store_true",
        help="fail, instead of skip, the tests that need torch when it is not installed",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if HAS_TORCH or config.getoption("--require-torch"):
        return
    skip = pytest.mark.skip(reason="torch is not installed (pip install '.[torch]')")
    for item in items:
        if "torch" in item.keywords:
            item.add_marker(skip)


@pytest.fixture
def golden() -> pathlib.Path:
    """Checkpoints written by the real programs; never written to (copy what a test changes)."""
    return pathlib.Path(__file__).parent / "data" / "golden"
