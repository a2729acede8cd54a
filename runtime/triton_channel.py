"""A request's way back through Triton's Python backend.

Triton frees what a response sender stands for with the final response, and the whole server dies of a sender
that is asked after its client later than that. The stepping thread answers and a watcher asks, so the two have
to exclude each other. No import of Triton's module: the model hands it in.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from typing import Any

from runtime.frontend.names import told


class Channel:
    """One response sender: answers from the stepping thread, questions from the watcher.

    Args:
        sender: Triton's response sender of a decoupled request.
        backend: the module ``triton_python_backend_utils``.
    """

    def __init__(self, sender: Any, backend: Any) -> None:
        self._sender = sender
        self._backend = backend
        self._lock = threading.Lock()
        self._ended = False
        #: the engine's id of the request
        self.key = ""

    @property
    def ended(self) -> bool:
        """Whether the final response was sent, or is being sent."""
        return self._ended

    def send(self, response: Any) -> None:
        """A response that is not the last; raises when there is nobody to take it, which ends the request."""
        try:
            self._sender.send(response)
        except Exception:
            with contextlib.suppress(Exception):
                self.end()
            raise

    def end(self, response: Any = None) -> None:
        """The final response, or the end alone; a second one is left out."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
        final = self._backend.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        if response is None:
            self._sender.send(flags=final)
        else:
            self._sender.send(response, flags=final)

    def fail(self, error: Mapping[str, Any]) -> None:
        """An error, as :meth:`ForgeError.to_json` gives it, as the final response."""
        self.end(self._backend.InferenceResponse(error=self._backend.TritonError(told(error))))

    def gone(self) -> bool:
        """Whether the client has cancelled or disappeared; False once the final response is on its way."""
        with self._lock:
            return not self._ended and bool(self._sender.is_cancelled())
