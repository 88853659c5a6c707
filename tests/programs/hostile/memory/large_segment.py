"""Makes a segment of shared memory with a name that is larger than a file may be."""

from multiprocessing.shared_memory import SharedMemory

try:
    segment = SharedMemory(create=True, size=2**25)
    segment.close()
    segment.unlink()
    print("done")
except OSError:
    print("refused")
