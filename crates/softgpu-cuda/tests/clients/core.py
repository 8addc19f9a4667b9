"""cuda-core on whatever GPU there is: memory, copies, PTX, launches, events, a graph."""

import sys

import numpy as np
from cuda.core import Device, LaunchConfig, LegacyPinnedMemoryResource, ObjectCode, launch

device = Device()
device.set_current()
stream = device.create_stream()
print(device.name, "with", device.properties.max_threads_per_block, "threads a block")

kernel = ObjectCode.from_ptx(open(sys.argv[1], "rb").read()).get_kernel("saxpy")
print("parameters", kernel.num_arguments)
COUNT = 100_000
pinned = LegacyPinnedMemoryResource()
host = [pinned.allocate(4 * COUNT) for _ in range(2)]
x, y = (np.from_dlpack(buffer).view(np.float32) for buffer in host)
x[:], y[:] = np.arange(COUNT), 1
on_card = [device.memory_resource.allocate(4 * COUNT, stream=stream) for _ in range(2)]
for there, here in zip(on_card, host):
    there.copy_from(here, stream=stream)
shape = LaunchConfig(grid=(COUNT + 127) // 128, block=128)
launch(stream, shape, kernel, np.uint32(COUNT), np.float32(2), *on_card)
on_card[1].copy_to(host[1], stream=stream)
done = stream.record()
done.sync()
print("saxpy", bool((y == 2 * np.arange(COUNT, dtype=np.float32) + 1).all()), done.is_done)

builder = device.create_graph_builder().begin_building()
launch(builder, shape, kernel, np.uint32(COUNT), np.float32(1), *on_card)
launch(builder, shape, kernel, np.uint32(COUNT), np.float32(1), *on_card)
graph = builder.end_building().complete()
graph.upload(stream)
for _ in range(3):
    graph.launch(stream)
on_card[1].copy_to(host[1], stream=stream)
stream.sync()
print("graph", bool((y == 8 * np.arange(COUNT, dtype=np.float32) + 1).all()))
for buffer in (*on_card, *host):
    buffer.close(stream)
stream.close()
