"""In which order the tests beside other code run, and on how many threads."""

import pytest


@pytest.fixture(scope="module")
def one_thread():
    """PyTorch has one thread: for small matrices more would wait for each other."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pytest_collection_modifyitems(items):
    """Steps that end their process come first: JAX starts threads at the first computation, and a fork has none."""
    items.sort(key=lambda item: item.path.stem != "test_relations_process")
