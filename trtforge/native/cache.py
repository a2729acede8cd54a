"""The folder that native builds are kept in."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "TRTFORGE_PLUGIN_CACHE"


def cache_folder() -> Path:
    """``$TRTFORGE_PLUGIN_CACHE``, else ``trtforge/plugins`` in the user's cache folder."""
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trtforge" / "plugins"
