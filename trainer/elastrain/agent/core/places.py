"""The generations that an agent knows, and the place of its member in each."""

from __future__ import annotations

from collections.abc import KeysView

from elastrain.api.records import Generation, GenerationMember


class Places:
    """One agent's generations. Global ranks follow from a generation's number and a rank's place on its worker."""

    def __init__(self) -> None:
        self.me: str | None = None
        """The member's id; None before it is registered: then it is in no generation."""
        self.fenced: dict[int, str] = {}
        """Generations that must not commit another step, and why."""
        self._generations: dict[int, Generation] = {}

    @property
    def numbers(self) -> KeysView[int]:
        """Numbers of the known generations."""
        return self._generations.keys()

    def learn(self, generation: Generation, oldest: int) -> None:
        """``generation`` was formed, and no rank is in a generation before ``oldest``."""
        known = self._generations | {generation.number: generation}
        self._generations = {n: g for n, g in known.items() if n >= oldest}

    def __getitem__(self, number: int) -> Generation:
        return self._generations[number]

    def generation(self, number: int) -> Generation | None:
        """The generation; None: it is unknown, or older than the generation of any rank."""
        return self._generations.get(number)

    def mine(self, number: int) -> GenerationMember | None:
        """This member's place in generation ``number``; None if it has none."""
        generation = self._generations.get(number)
        return generation.member(self.me) if generation and self.me else None

    def rank(self, number: int, local_rank: int) -> int | None:
        """Global rank in generation ``number``; None if this member is not in it."""
        place = self.mine(number)
        return None if place is None else place.rank_offset + local_rank

    def fence(self, seconds: float, *, alone: bool = True) -> None:
        """Stop generations with this member (``alone``: with it alone): etcd has not confirmed its lease for
        ``seconds``.

        In a larger generation each step needs the other members, which proves that no other generation was formed,
        unless all of them were stopped (:mod:`elastrain.agent.core.vouching`). A member alone has no such proof: its
        training stops until etcd answers and a new generation follows."""
        stopped = "" if alone else " while the agent was stopped"
        for number, generation in self._generations.items():
            if (generation.size == 1 or not alone) and self.mine(number) is not None:
                self.fenced[number] = f"etcd has not confirmed the lease for {seconds:.1f} s{stopped}"
