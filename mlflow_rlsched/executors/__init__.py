"""Where attempts run: the shim and the executors."""
