"""The pages: each a module with ``layout(context, view)`` and ``register(app, context)``."""
