"""What is refused of arrays and arguments, in which words, and that nothing has changed then."""
