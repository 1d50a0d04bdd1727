"""In which order the tests beside other code run."""


def pytest_collection_modifyitems(items):
    """Steps that end their process come first: JAX starts threads at the first computation, and a fork has none."""
    items.sort(key=lambda item: item.path.stem != "test_relations_process")
