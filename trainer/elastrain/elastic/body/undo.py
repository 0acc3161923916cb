"""What a discarded step is put back to: the state with which it began, as far as bodies change it before an update."""

from __future__ import annotations

from elastrain.elastic.body.several import SeveralBackwards
from elastrain.elastic.group.world import World
from elastrain.elastic.state.buffers import Buffers
from elastrain.elastic.state.rollback import Touched


class Undo:
    """Of one rank, from the warm-up on. For the training thread."""

    def __init__(self, world: World, several: SeveralBackwards, buffers: Buffers, touched: Touched) -> None:
        """``buffers``: of the model. ``touched``: what loop bodies change by themselves."""
        self.buffers, self.touched = buffers, touched
        self._world, self._several = world, several

    def save(self) -> None:
        """A step begins, or begins again."""
        self.buffers.save()
        if self._several.allowed:
            self._several.snapshot.save()
        else:
            self.touched.save()

    def restore(self) -> bool:
        """The step is discarded. Returns whether the copy holds all of the state."""
        self.drop_gradients()
        if self._several.allowed:
            self._several.snapshot.restore()
        else:
            self.touched.restore()
        self.buffers.restore()
        return self._several.allowed

    def drop_gradients(self) -> None:
        """The gradients are those with which the step began; of the warm-up as of a discarded one."""
        kept = self._world.state.kept
        if kept.begun and self._world.model is not None:
            self._world.model.drop_gradients()
        kept.restore()
