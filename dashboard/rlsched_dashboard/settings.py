"""What the dashboard is started with."""

from __future__ import annotations

from dataclasses import dataclass

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Hosts that only this machine reaches."""


@dataclass(frozen=True)
class Settings:
    """Where the dashboard reads, where it listens, and what it lets people do.

    Attributes:
        store: Absolute URL of the store.
        tracking_uri: MLflow tracking URI of the runs.
        mlflow_ui_url: Address of the MLflow UI that links lead to; None where there is none.
        host: Address to listen on.
        port: TCP port.
        url_prefix: Path below which all is served, with a slash at both ends.
        read_only: Whether nobody can cancel, retry or change priorities.
        token: What a browser has to know, or None.
        user_header: Header in which an authenticating proxy names the user, or None.
        studies: URL of the storage of studies; None for this user's own.
    """

    store: str
    tracking_uri: str
    mlflow_ui_url: str | None = None
    host: str = "127.0.0.1"
    port: int = 8050
    url_prefix: str = "/"
    read_only: bool = True
    token: str | None = None
    user_header: str | None = None
    studies: str | None = None

    @property
    def is_authenticated(self) -> bool:
        """Whether those who come are known."""
        return self.token is not None or self.user_header is not None

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host in LOOPBACK
