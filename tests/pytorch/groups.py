"""Groups of processes of ``torch.distributed``."""

import contextlib
import datetime

import pytest

distributed = pytest.importorskip("torch.distributed")
with_gloo = pytest.mark.skipif(not (distributed.is_available() and distributed.is_gloo_available()),
                               reason="PyTorch has no gloo here")


@contextlib.contextmanager
def process_group(folder, rank, ranks):
    """The group of so many ranks that meet in a folder, of which this process is one; it gives up after a minute."""
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store{ranks}", rank=rank, world_size=ranks,
                                   timeout=datetime.timedelta(seconds=60))
    try:
        yield
        distributed.barrier()
    finally:
        distributed.destroy_process_group()
