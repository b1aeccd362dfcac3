from tests.launcher.backends.gcp.conftest import clouds, gcs

__all__ = ["clouds", "gcs"]
