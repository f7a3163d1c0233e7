"""`inferplan compare`: the same load on several models, parts or precisions, side by side."""

from __future__ import annotations

from inferplan.cli.estimate_command import app

__all__ = ["app"]
