"""The LoRA adapters that an engine has. One is loaded a layer at a time between steps, so that nobody else waits for long."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from pathlib import Path

from pitstop.config import Adapter
from pitstop.engine.protocol import AdapterState
from pitstop.errors import WeightsError
from pitstop.models.config import ModelConfig
from pitstop.models.lora.file import AdapterFile
from pitstop.models.lora.weights import Lora, prepare


class Adapters:
    """By id: those that requests may use, and those that are being loaded, in order."""

    def __init__(self, model: ModelConfig, device: str) -> None:
        self.ready: dict[str, Lora] = {}
        self._model = model
        self._device = device
        self._loaded: dict[str, Adapter] = {}
        self._loading: dict[str, Generator[None, None, Lora]] = {}

    @property
    def busy(self) -> bool:
        return bool(self._loading)

    def begin(self, adapter: Adapter) -> None:
        """Load it from now on. One that is here is only reported again."""
        self._loading.setdefault(adapter.id, self._load(adapter))

    def advance(self) -> list[AdapterState]:
        """Load one layer more; what has become of an adapter by that."""
        for name, loading in self._loading.items():
            try:
                next(loading)
                return []
            except StopIteration as end:
                state = AdapterState(name)
                self.ready[name] = end.value
            except (WeightsError, OSError, ValueError) as error:  # ValueError: a mapped file that has become shorter
                state = AdapterState(name, str(error))
            del self._loading[name]
            return [state]
        return []

    def load(self, adapters: Iterable[Adapter]) -> list[AdapterState]:
        """Load all of them now."""
        for adapter in adapters:
            self.begin(adapter)
        states = []
        while self.busy:
            states += self.advance()
        return states

    def drop(self, name: str) -> None:
        """Forget the adapter of this id, wherever it is on its way. Whoever keeps its `Lora` keeps its memory."""
        self._loading.pop(name, None)
        self.ready.pop(name, None)
        self._loaded.pop(name, None)

    def notes(self) -> list[str]:
        """A line for the operator on each."""
        return [
            f"LoRA adapter {adapter.name}: rank {adapter.rank}, {self.ready[name].bytes / 2**20:.1f} MiB"
            + (f", made for {adapter.base}" if adapter.base else "")
            for name, adapter in self._loaded.items()
        ]

    def _load(self, adapter: Adapter) -> Generator[None, None, Lora]:
        """Raises WeightsError, also for a file that is not what the front read."""
        if adapter.id in self.ready:
            return self.ready[adapter.id]
        file = AdapterFile(Path(adapter.path), self._model)
        lora = yield from prepare(file, self._model, self._device)
        if adapter.digest != file.digest:
            raise WeightsError(file.path, f"has changed since it was loaded as {adapter.name}; load it again")
        self._loaded[adapter.id] = adapter
        return lora
