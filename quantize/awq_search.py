"""AWQ's search, kept after every decoder layer: a killed calibration goes on where it was.

ModelOpt's AWQ runs the calibration text twice: a short pass for the activations' scales, and the search, which tries
eleven exponents on every linear and takes nearly all of the time. The search only adds up each exponent's loss and
hands on the unquantized output, so its state is a few numbers a linear. The first pass is run again and gives the same
scales; what was searched is not searched again, and the result is that of an undisturbed run, bit for bit.

Source: ``awq_lite`` in modelopt/torch/quantization/model_calib.py of the pinned release.
"""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

#: ModelOpt's name of the algorithm, and the pass over the text that searches
METHOD, SEARCH_PASS = "awq_lite", 2
STATE_FILE = "awq-search.npz"


class AwqSearch:
    """The state of one search in ``scratch``, a folder that is one recipe's and survives a kill.

    Attributes:
        batch: the batch that is to be searched next.
        layers: decoder layers of it that were searched.
    """

    def __init__(self, scratch: Path) -> None:
        self._path = scratch / STATE_FILE
        self.batch = self.layers = 0

    def restore(self, model: Any) -> None:
        """Put the kept losses into the model's linears, where a search of this very model was kept."""
        try:
            with np.load(self._path, allow_pickle=False) as kept:
                names, losses, steps = kept["names"].tolist(), kept["losses"], kept["steps"]
                batch, layers = (int(value) for value in kept["place"])
        except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile):
            return  # nothing was kept, or a kill cut it short: the search begins anew
        searches = dict(_searched(model))
        width = {len(search.loss) for search in searches.values()}
        if names != list(searches) or width != {losses.shape[-1]} or not len(losses) == len(steps) == len(names):
            return
        for search, row, count in zip(searches.values(), losses, steps, strict=True):
            for alpha, loss in zip(search.loss, row, strict=True):
                search.loss[alpha] = search.loss[alpha].new_tensor(loss)
            search.num_search_steps = int(count)
        self.batch, self.layers = batch, layers

    def keep(self, model: Any, batch: int, layers: int) -> None:
        """Write the losses as they are after so many layers of a batch.

        A disk that takes no more costs the time of a rerun, not the run.
        """
        names, losses, steps = [], [], []
        for name, search in _searched(model):
            names.append(name)
            losses.append([float(loss) for loss in search.loss.values()])
            steps.append(search.num_search_steps)
        partial = self._path.with_suffix(".partial.npz")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            np.savez(
                partial, names=np.array(names), losses=np.array(losses), steps=np.array(steps), place=[batch, layers]
            )
            partial.replace(self._path)
        except OSError:
            partial.unlink(missing_ok=True)

    @contextlib.contextmanager
    def resumed(self, model: Any, batch: int, layers: str) -> Iterator[None]:
        """For one batch: linears of the decoder layers that were searched in it hand on their output only.

        Args:
            layers: name of the list of decoder layers, such as ``model.layers``.
        """
        done = tuple(f"{layers}.{index}." for index in range(self.layers if batch == self.batch else 0))
        resting = [search for name, search in _searched(model) if name.startswith(done) and search.is_enabled]
        for search in resting:
            search.is_enabled = False
        try:
            yield
        finally:
            for search in resting:
                search.is_enabled = True


def _searched(model: Any) -> Iterator[tuple[str, Any]]:
    """Name and state of every linear that AWQ searches."""
    for name, module in model.named_modules():
        search = getattr(module, "awq_lite", None)
        if search is not None:
            yield name, search
