"""The repository itself: pages, notebooks, records, benchmarks, maps, and the tests on other machines."""
