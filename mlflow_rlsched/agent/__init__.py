"""The scheduling process: claims, places, watches, recovers, and tells MLflow."""
