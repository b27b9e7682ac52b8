"""Running out on a GPU: what the limit asks of the allocator, and what comes of its error. The allocator is made up."""

import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'servecast[device]'")

from servecast.device.ballast import Ballast, DeviceLimit, wanted_bytes  # noqa: E402
from servecast.errors import InputError  # noqa: E402
from servecast.executor import RanOutError  # noqa: E402

MIB = 1 << 20
CUDA = torch.device("cuda", 0)


class Allocator:
    """A device of 1,000 MiB, of which so many are reserved, in part only kept; and what was asked of it."""

    def __init__(self, monkeypatch, reserved=300, kept=0):
        self.reserved, self.kept, self.fractions, self.emptied = reserved * MIB, kept * MIB, [], 0
        for name in (
            "memory_reserved",
            "mem_get_info",
            "get_device_properties",
            "set_per_process_memory_fraction",
            "empty_cache",
        ):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))

    def memory_reserved(self, device):
        return self.reserved + self.kept

    def mem_get_info(self, device):
        return 1000 * MIB - self.reserved - self.kept, 1000 * MIB

    def get_device_properties(self, device):
        return types.SimpleNamespace(total_memory=1000 * MIB)

    def set_per_process_memory_fraction(self, fraction, device):
        self.fractions.append(fraction)

    def empty_cache(self):
        self.kept = 0
        self.emptied += 1


def out_of_memory():
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 60.00 MiB. GPU 0 has a total capacity of 1000 MiB"
    )


def test_the_allocator_may_have_what_was_there_and_the_room_and_everything_again_afterwards(monkeypatch):
    allocator = Allocator(monkeypatch)
    limit = DeviceLimit(CUDA, 200 * MIB, 100 * MIB)
    with limit.room(100 * MIB, 0):
        pass
    allocator.reserved += 40 * MIB  # the cache has grown
    with limit.room(60 * MIB, 40 * MIB):
        pass
    assert allocator.fractions == [pytest.approx(0.4), 1.0, pytest.approx(0.4), 1.0]


def test_what_the_allocator_only_keeps_is_given_back_before_its_limit_counts(monkeypatch):
    allocator = Allocator(monkeypatch)
    limit = DeviceLimit(CUDA, 200 * MIB, 100 * MIB)
    with limit.room(200 * MIB, 0):
        allocator.kept = 150 * MIB  # activations, freed again
    before = allocator.emptied
    with limit.room(100 * MIB, 0):
        assert allocator.kept == 0
    assert allocator.emptied == before + 1


def test_running_out_names_the_bytes_wanted_and_there(monkeypatch):
    allocator = Allocator(monkeypatch)
    limit = DeviceLimit(CUDA, 200 * MIB, 100 * MIB)
    with pytest.raises(RanOutError) as ran_out, limit.room(50 * MIB, 20 * MIB):
        out_of_memory()
    assert (ran_out.value.wanted_bytes, ran_out.value.available_bytes) == (80 * MIB, 70 * MIB)
    assert allocator.fractions[-1] == 1.0


def test_another_error_is_no_want_of_memory(monkeypatch):
    allocator = Allocator(monkeypatch)
    with pytest.raises(RuntimeError, match="illegal"), DeviceLimit(CUDA, 200 * MIB, 100 * MIB).room(MIB, 0):
        raise RuntimeError("illegal memory access")
    assert allocator.fractions[-1] == 1.0


def test_a_device_with_less_than_the_limit_has_not_shown_the_limit(monkeypatch):
    Allocator(monkeypatch, reserved=900)
    with pytest.raises(InputError, match=r"200 MB|0.21 GB more were allowed, the device has 0.105 GB"):  # noqa: SIM117
        with DeviceLimit(CUDA, 200 * MIB, 200 * MIB).room(200 * MIB, 0):
            out_of_memory()


def test_ballast_weighs_what_rows_have_grown_by():
    ballast = Ballast(torch.device("cpu"), slots=3, token_bytes=100)
    ballast.grow([(0, 10), (1, 5)])
    assert ballast.held == 1500
    ballast.grow([(0, 10), (1, 6), (2, 1)])
    assert ballast.held == 1700
    ballast.grow([(0, 3)])  # a row never shrinks
    assert ballast.held == sum(piece.numel() for piece in ballast._pieces) == 1700
    ballast.release()
    assert ballast.held == 0 == len(ballast._pieces)
    ballast.grow([(0, 1)])
    assert ballast.held == 100


@pytest.mark.parametrize(
    ("message", "size"),
    [
        ("Tried to allocate 60.00 MiB. GPU 0", 60 * MIB),
        ("Tried to allocate 1.50 GiB (GPU 0)", 3 << 29),
        ("Tried to allocate 512 bytes", 512),
        ("out of memory", 0),
    ],
)
def test_the_size_is_read_from_the_message(message, size):
    assert wanted_bytes(message) == size
