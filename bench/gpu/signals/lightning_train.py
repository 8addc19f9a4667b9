"""A Lightning training, stopped as docs/recipes/lightning.md says: lightning_train.py FOLDER."""
import os
import sys

import torch
from lightning.pytorch import LightningModule, Trainer
from notice import SaveOnNotice


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1024, 1024)

    def training_step(self, batch, index):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)

    def on_train_start(self):
        print(f"training pid={os.getpid()}", flush=True)


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        while True:
            yield torch.randn(1024)


path = os.path.join(sys.argv[1], "last.ckpt")
data = torch.utils.data.DataLoader(Endless(), batch_size=64)
notice = SaveOnNotice(path)
trainer = Trainer(
    accelerator="gpu",
    devices=1,
    max_time={"seconds": 400},
    callbacks=[notice],
    default_root_dir=sys.argv[1],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Model(), data, ckpt_path=path if os.path.exists(path) else None)
if notice.stopped:
    print(f"stopped at step {trainer.global_step}", flush=True)
    sys.exit(75)
print("nothing came", flush=True)
