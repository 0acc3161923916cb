"""The table of what bitwise numerics cost."""

from numerics import Figures, Report, markdown
from rescale_harness.results import Machine

MACHINE = Machine(
    processor="a processor", cores=2, memory_gib=8, system="Linux", python="3.11", torch="2.13", etcd="3.6.6",
    elastrain="0.1.0", revision="abc", load=0.1,
)  # fmt: skip


def figures(variant: str, world: int, middle: float) -> Figures:
    return Figures(variant=variant, world=world, steps=[middle * f for f in (0.8, 0.9, 1.0, 1.1, 1.2)])


def test_each_size_is_compared_with_the_default_at_the_same_size() -> None:
    medians = {("default", 1): 0.1, ("default", 2): 0.2, ("bitwise", 1): 0.3, ("bitwise", 2): 0.3}
    measured = [figures(*case, median) for case, median in medians.items()]
    lines = markdown(Report(machine=MACHINE, began="now", runs=1, figures=measured)).splitlines()
    assert lines[0] == "| step, ms | 1 rank | × default | 2 ranks | × default |"
    assert lines[3] == "| bitwise | 300 (252 to 348) | 3.00 | 300 (252 to 348) | 1.50 |"
