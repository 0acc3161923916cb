"""Whether a script draws numbers of samples: those that differ between ranks."""

from __future__ import annotations

import torch

from elastrain.data.draws import Draws


class Watched(Draws):
    """Also notes whether code drew numbers of samples."""

    drew = False

    def _seed_samples(self) -> None:
        super()._seed_samples()
        self._begun = torch.default_generator.get_state()

    def _seed_update(self) -> None:
        if self._part is not None and not self._updates:
            self.drew |= not torch.equal(self._begun, torch.default_generator.get_state())
        super()._seed_update()
