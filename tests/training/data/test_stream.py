"""Iterable data sets: cut by position, read forwards."""

from collections.abc import Iterator
from typing import Any

import pytest

from elastrain.data import Replayed
from elastrain.data.loader import ElasticLoader
from elastrain.data.order import Order, Slice
from elastrain.data.share import Share
from elastrain.data.stream import ElasticIterable, StreamEnded, length_of
from elastrain_readers import Resumable


class Numbers:
    """Position p of epoch e is 1000 * e + p. Counts reads and iterations."""

    def __init__(self, length: int | None = None, seeks: bool = False) -> None:
        self.seeks, self.length = seeks, length
        self.read = self.opened = 0

    def iter_from(self, epoch: int, position: int) -> Iterator[int]:
        self.opened += 1
        while self.length is None or position < self.length:
            self.read += 1
            yield 1000 * epoch + position
            position += 1


class SizedNumbers(Numbers):
    def __len__(self) -> int:
        return self.length


def loader(stream: ElasticIterable, num_workers: int = 0) -> ElasticLoader:
    order = Order(length_of(stream), global_batch_size=6, shuffle=False)
    return ElasticLoader(stream, order, collate_fn=list, num_workers=num_workers)


def fetch(loader: ElasticLoader, step: int, rank: int, world_size: int) -> tuple[Any, Slice]:
    """The data and the slice of a step that has one micro-batch."""
    (part,) = loader.begin(step, Share(rank, world_size))
    return loader.load(), part


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("stream", [Numbers(), SizedNumbers(16), SizedNumbers(16, seeks=True)])
def test_every_position_is_read_exactly_once_if_the_world_changes(stream, num_workers) -> None:
    ranks = [loader(stream, num_workers) for _ in range(3)]
    worlds = [1, 1, 3, 2, 2, 3, 1]
    consumed = []
    for step, world in enumerate(worlds):
        for rank in range(world):
            batch, part = fetch(ranks[rank], step, rank, world)
            assert len(batch) == len(part.indices)
            consumed += batch
    if stream.length is None:
        assert consumed == list(range(42))
    else:
        epochs = [list(range(e * 1000, e * 1000 + 16)) for e in range(3)]
        assert consumed == [*epochs[0], *epochs[1], *epochs[2][:6]]


def test_other_parts_are_skipped_by_reading_or_by_seeking() -> None:
    for seeks, opened, read in ((False, 1, 26), (True, 5, 10)):
        stream = Numbers(seeks=seeks)
        one = loader(stream)
        for step in range(5):
            fetch(one, step, 1, 3)
        assert (stream.opened, stream.read) == (opened, read)


def test_it_is_read_again_from_its_beginning_if_it_cannot_be_positioned() -> None:
    stream = Replayed(lambda epoch: (f"{epoch}.{i}" for i in range(10)), length=10)
    assert fetch(loader(stream), 3, 1, 2)[0] == ["1.8", "1.9"]
    assert length_of(Replayed(lambda _: iter(int, 1))) is None


def test_error_names_the_remedy_if_a_data_set_fulfils_no_contract() -> None:
    with pytest.raises(TypeError, match=r"generator has neither .* iter_from.*Replayed"):
        length_of(i for i in range(3))


def test_error_names_the_position_if_a_stream_is_shorter_than_its_length() -> None:
    stream = SizedNumbers(20)
    one = loader(stream)
    stream.length = 10
    fetch(one, 0, 0, 1)
    with pytest.raises(StreamEnded, match="epoch 0 ends before position 10"):
        fetch(one, 1, 0, 1)


def test_an_endless_stream_has_one_epoch_and_no_shuffle() -> None:
    order = Order(None, 4, shuffle=False)
    assert order.slice(10**9, 0, 2).epoch == 0
    assert order.samples_before(7) == 28
    with pytest.raises(ValueError, match="shuffle"):
        Order(None, 4)


class WithState:
    """An epoch of numbers whose position is its state, as that of a data set for torchdata's StatefulDataLoader."""

    def __init__(self, epoch: int, read: list[int]) -> None:
        self.epoch, self.at, self.read = epoch, 0, read

    def __iter__(self) -> Iterator[int]:
        while self.at < 1000:
            self.at += 1
            self.read.append(self.at - 1)
            yield 1000 * self.epoch + self.at - 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def resumable(**options: Any) -> tuple[Resumable, list[int]]:
    read: list[int] = []
    return Resumable(lambda epoch: WithState(epoch, read), length=1000, **options), read


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stream_with_a_state_has_each_position_once_if_the_world_changes(tmp_path, num_workers) -> None:
    for options in ({}, {"folder": tmp_path}):
        ranks = [loader(resumable(every=4, **options)[0], num_workers) for _ in range(3)]
        consumed = []
        for step, world in enumerate([1, 1, 3, 2, 2, 3, 1, 3]):
            for rank in range(world):
                batch, part = fetch(ranks[rank], step, rank, world)
                consumed += batch if part.indices else []
        assert consumed == list(range(48))


def test_at_most_the_samples_since_the_last_state_are_read_again() -> None:
    stream, read = resumable(every=10)
    begun = stream.iter_from(2, 0)
    assert [next(begun) for _ in range(95)] == list(range(2000, 2095))
    for position, first in ((94, 90), (90, 90), (89, 80), (5, 0)):
        read.clear()
        assert next(stream.iter_from(2, position)) == 2000 + position
        assert read == list(range(first, position + 1))
    read.clear()
    assert next(stream.iter_from(3, 12)) == 3012
    assert read == list(range(13)), "states belong to their epoch"


def test_few_states_are_kept_and_the_new_ones_close_to_each_other(tmp_path) -> None:
    for options in ({}, {"folder": tmp_path}):
        stream, _ = resumable(every=10, keep=8, **options)
        for _ in stream.iter_from(0, 0):
            assert len(stream._states.places()) <= 8
        kept = sorted(position for _, position in stream._states.places())
        assert kept[-1] == 1000
        assert kept[0] <= 500, "an older position would be read from the beginning"
    assert len(list(tmp_path.iterdir())) == len(kept), "partial files are left"


def test_a_new_process_begins_at_a_state_in_the_folder(tmp_path) -> None:
    first, _ = resumable(every=10, folder=tmp_path)
    begun = first.iter_from(0, 0)
    for _ in range(64):
        next(begun)
    second, read = resumable(every=10, folder=tmp_path)
    assert next(second.iter_from(0, 65)) == 65
    assert read == list(range(60, 66))


def test_an_older_state_is_taken_if_another_rank_has_just_deleted_the_newest(tmp_path, monkeypatch) -> None:
    stream, read = resumable(every=10, folder=tmp_path)
    begun = stream.iter_from(0, 0)
    for _ in range(64):
        next(begun)
    places = stream._states.places()
    (tmp_path / "state-0-60.pt").unlink()
    monkeypatch.setattr(stream._states, "places", lambda: places)
    read.clear()
    assert next(stream.iter_from(0, 65)) == 65
    assert read[0] == 50


def test_error_names_the_file_or_the_class_if_there_is_no_state(tmp_path) -> None:
    stream, _ = resumable(folder=tmp_path)
    (tmp_path / "state-0-10.pt").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"state-0-10\.pt: not a state of a stream"):
        next(stream.iter_from(0, 20))
    with pytest.raises(TypeError, match=r"list has no state_dict.*Replayed"):
        next(Resumable(lambda epoch: [1]).iter_from(0, 0))
    with pytest.raises(ValueError, match="every, keep: 0, 32"):
        resumable(every=0)
    assert length_of(Resumable(lambda epoch: [1])) is None
