"""What came of runs: where their time went, what other policies would have done, what was saved."""
