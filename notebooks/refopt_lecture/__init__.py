"""What the notebooks share: `harness` quotes and compares, `pictures` draws memory, `programs` draws steps."""
