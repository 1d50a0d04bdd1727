"""Other libraries' optimizers, held to the formulae; make test-peers runs them."""
